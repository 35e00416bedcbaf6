"""`nightjar-ci bisect`: finds which rung of a ladder made a test fail or a metric worse."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.errors import ExitCode, InputError

if TYPE_CHECKING:
    from nightjar_ci.bisect.result.report import Progress
    from nightjar_ci.bisect.run import Plan
    from nightjar_ci.settings import Settings


class Better(StrEnum):
    """Which values of a metric are better."""

    LOWER = "lower"
    HIGHER = "higher"


Texts = list[str] | None
# One for each panel of --help.
ends = partial(typer.Option, rich_help_panel="Between what")
place = partial(typer.Option, rich_help_panel="What to test, and where")
judge = partial(typer.Option, rich_help_panel="How to judge")
budget = partial(typer.Option, rich_help_panel="How much to spend")
output = partial(typer.Option, rich_help_panel="Output")

Test = Annotated[Texts, typer.Argument(metavar="-- COMMAND...", help="The test, after `--`.")]
End = Annotated[
    Texts,
    ends(
        metavar="END",
        help="NAME==VERSION (repeat for more packages), lock file, date of an image, COMMIT, NAME=COMMIT, or rung.",
    ),
]


def command(
    test: Test = None,
    good: End = None,
    bad: End = None,
    with_: Annotated[
        Texts, ends("--with", help="Requirement to install in every environment; repeat for more.")
    ] = None,
    images: Annotated[
        str | None, ends(help="Ladder of nightly images: REPOSITORY[:NAME], or a nightly index (.json).")
    ] = None,
    repo: Annotated[
        Texts,
        ends(
            metavar="[NAME=]REPO",
            help="Ladder of commits: folder or address of a git repository; repeat for several, each with a name. With "
            "NAME==VERSION: the repository of a package, so that the commits of the culprit release are bisected next.",
        ),
    ] = None,
    pin: Annotated[
        Texts,
        ends(metavar="NAME:PATH", help="File or submodule in which a repository names the commit of another one."),
    ] = None,
    rungs: Annotated[Path | None, ends(help="Ladder of your own: a file with one rung per line.")] = None,
    prepare: Annotated[
        str | None, place(help="Command that prepares a commit or listed rung; {rung} and {folder} are filled.")
    ] = None,
    environment: Annotated[str, place(help="Environment in which commits and listed rungs are tested.")] = "current",
    metric: Annotated[
        str | None,
        judge(
            metavar="NAME|REGEX",
            help="Judge by this sample or curve of result.json, NAME=VALUE on stdout, or the group of a REGEX there.",
        ),
    ] = None,
    better: Annotated[Better, judge(help="Which values are better.")] = Better.LOWER,
    like: Annotated[
        str | None,
        judge(
            metavar="CELL[/facts|/convergence]",
            help="Judge result.json as the gate judges this cell, by its facts and curves, or by either.",
        ),
    ] = None,
    failure: Annotated[
        Texts,
        judge(
            metavar="crash|timeout|import|REGEX|RATE%",
            help="Also count this as bad; with a REGEX, only failures whose output matches. RATE%: how often the "
            "bad end fails, if known.",
        ),
    ] = None,
    verdict: Annotated[
        Path | None,
        judge(help="Start from the verdicts.json of a night; the argument is a regressed series (default: the worst)."),
    ] = None,
    pass_env: Annotated[
        Texts, place(metavar="NAME", help="Variable that the test also inherits; PREFIX* is a pattern.")
    ] = None,
    secret: Annotated[
        Texts, place(metavar="NAME", help="Secret that the test inherits; masked in all that it leaves.")
    ] = None,
    workers: Annotated[
        int, budget(min=1, max=64, help="Probes to run in parallel; they share the working directory and a GPU.")
    ] = 1,
    timeout_s: Annotated[float, place(min=0.1, help="Wall time of one test, seconds.")] = 600.0,
    deterministic: Annotated[
        bool, judge("--deterministic", help="Treat the test as deterministic: run each version once.")
    ] = False,
    max_tests: Annotated[int, budget(min=2, help="Most tests to run, over all ladders; a pair is one.")] = 400,
    max_minutes: Annotated[
        float | None, budget(min=0.01, help="Start no test after so many minutes of work, over all ladders.")
    ] = None,
    explain: Annotated[bool, output("--explain", help="Profile both sides of the culprit and compare.")] = False,
    dry_run: Annotated[bool, output("--dry-run", help="Print the ladder, and test nothing.")] = False,
    as_json: Annotated[bool, output("--json", help="Print nightjar.answer/1.")] = False,
) -> None:
    """Find the release, image or commit that changed a test.

    The order of the ends says what is looked for: a regression, or (good is the newer one) a fix. An interrupted
    bisection goes on with the same command. Exit code 4: nothing to be found, or the machine is too loud.

    Example: nightjar-ci bisect --good jax==0.4.31 --bad jax==0.5.0 --metric us_per_step -- python scan_3x3.py
    """
    parameters = locals()  # each option is a field of that name
    from nightjar_ci.bisect.options.options import options_from_parameters
    from nightjar_ci.bisect.options.plan import make_plan
    from nightjar_ci.bisect.result.report import Progress
    from nightjar_ci.settings import keep_out_of_git, read_settings

    settings = read_settings()
    options = options_from_parameters(parameters)
    progress = Progress()
    if verdict is not None:
        from nightjar_ci.bisect.options.from_verdict import find_worst, options_from_verdict

        if len(options.command) > 1:
            raise InputError(
                "--verdict wants at most one argument, the series that regressed.", "CELL/NAME, as the report says"
            )
        series = next(iter(options.command), None) or find_worst(verdict)
        if series is None:
            typer.echo(f"{verdict}: nothing regressed, so there is nothing to bisect.")
            raise typer.Exit(ExitCode.CANNOT_TELL)
        options = options_from_verdict(options, verdict, series)
    plan = make_plan(options, settings, progress.say)
    folder = settings.bisections_dir / plan.question.id
    if dry_run:
        _print_plan(plan, folder, settings, as_json)
        return
    keep_out_of_git(settings)
    _run(plan, folder, settings, progress, as_json=as_json)


def _run(plan: Plan, folder: Path, settings: Settings, progress: Progress, *, as_json: bool) -> None:
    from nightjar_ci.bisect.result.report import print_answer, to_json, write_answer
    from nightjar_ci.bisect.run import run_bisection
    from nightjar_ci.bisect.state import read_probes

    progress.probes, progress.seeks_fix = len(read_probes(folder)), plan.search.seeks_fix
    with progress:
        answer = run_bisection(plan, folder, settings, progress.say, progress.on_probe)
        page = write_answer(answer, folder)
    if as_json:
        typer.echo(to_json(answer))
    else:
        from nightjar_ci.untrusted.console import open_console

        print_answer(answer, open_console(highlight=False))
        typer.echo(page)
    raise typer.Exit(answer.exit_code)


def _print_plan(plan: Plan, folder: Path, settings: Settings, as_json: bool) -> None:
    import json

    from nightjar_ci.bisect.probing.rung_setup import RungSetup
    from nightjar_ci.bisect.state import read_bisection

    recorded = read_bisection(folder)
    ladder = plan.make_ladder() if recorded is None else recorded.stages[0].ladder
    setup = RungSetup(folder, plan.question, settings, ladder, typer.echo)
    ready = [setup.is_ready(index) for index in range(len(ladder.rungs))]
    if as_json:
        plain = {"folder": str(folder), "find": plan.question.find, "ready": ready, **ladder.model_dump(mode="json")}
        typer.echo(json.dumps(plain, indent=1))
        return
    for index, rung in enumerate(ladder.rungs):
        marks = [text for text in (rung.note, "ready" if ready[index] else None) if text]
        typer.echo(
            f"{index:4d}  {(rung.when or '')[:10]:10}  {rung.name}" + (f" ({', '.join(marks)})" if marks else "")
        )
    for note in ladder.notes:
        typer.echo(f"      note: {note}")
    typer.echo(f"Looking for a {plan.question.find} on {len(ladder.rungs)} rungs, {sum(ready)} of them ready.")
