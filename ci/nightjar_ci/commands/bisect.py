"""`nightjar-ci bisect`: finds which rung of a ladder made a test fail or a metric worse."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.errors import InputError

if TYPE_CHECKING:
    from nightjar_ci.bisect.probing.rung_setup import OnLine
    from nightjar_ci.bisect.result.progress import Progress
    from nightjar_ci.bisect.run import Plan
    from nightjar_ci.settings import Settings


class Better(StrEnum):
    """Which values of a metric are better."""

    LOWER = "lower"
    HIGHER = "higher"


# Panels of --help.
ENDS, TEST, JUDGE = "Between what", "What to test, and where", "How to judge"
BUDGET, OUTPUT = "How much to spend", "Output"

Test = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The test, after `--`.")]
End = Annotated[
    list[str] | None,
    typer.Option(
        metavar="END", help="VERSION, NAME==VERSION, date, commit, NAME=COMMIT or rung.", rich_help_panel=ENDS
    ),
]


def command(
    test: Test = None,
    good: End = None,
    bad: End = None,
    package: Annotated[
        list[str] | None,
        typer.Option(help="Ladder of releases of this package; repeat for more.", rich_help_panel=ENDS),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="Requirement to install in every environment; repeat for more.", rich_help_panel=ENDS
        ),
    ] = None,
    good_lock: Annotated[
        Path | None, typer.Option(help="Ladder from the pins of this lock file.", rich_help_panel=ENDS)
    ] = None,
    bad_lock: Annotated[
        Path | None, typer.Option(help="Ladder to the pins of this lock file.", rich_help_panel=ENDS)
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Ladder of nightly images: REPOSITORY[:NAME], or a nightly index (.json).", rich_help_panel=ENDS
        ),
    ] = None,
    repo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]REPO",
            help="Ladder of commits: folder or address of a git repository; repeat for several, then each with a name.",
            rich_help_panel=ENDS,
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:PATH",
            help="File or submodule in which a repository names the commit of another one.",
            rich_help_panel=ENDS,
        ),
    ] = None,
    cherry_pick: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]REV",
            help="Commit or range A..B to apply to each commit that lacks it, such as a fix of the build.",
            rich_help_panel=ENDS,
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REPO",
            help="Repository of a package: where a release of it is found, its commits are bisected next.",
            rich_help_panel=ENDS,
        ),
    ] = None,
    rungs: Annotated[
        Path | None, typer.Option(help="Ladder of your own: a file with one rung per line.", rich_help_panel=ENDS)
    ] = None,
    prepare: Annotated[
        str | None,
        typer.Option(
            help="Command that prepares a commit or listed rung; {rung} and {folder} are filled.", rich_help_panel=TEST
        ),
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Install each commit into the current packages.", rich_help_panel=TEST)
    ] = False,
    environment: Annotated[
        str, typer.Option(help="Environment in which commits and listed rungs are tested.", rich_help_panel=TEST)
    ] = "current",
    python: Annotated[
        str | None, typer.Option(help="Python of environments, such as 3.12; default: this one.", rich_help_panel=TEST)
    ] = None,
    any_date: Annotated[
        bool,
        typer.Option(
            "--any-date", help="Allow other packages to be newer than the release of the rung.", rich_help_panel=ENDS
        ),
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Judge by this sample or curve of result.json, or NAME=VALUE on stdout.", rich_help_panel=JUDGE
        ),
    ] = None,
    metric_regex: Annotated[
        str | None, typer.Option(help="Judge by the group of the last match on stdout.", rich_help_panel=JUDGE)
    ] = None,
    better: Annotated[Better, typer.Option(help="Which values are better.", rich_help_panel=JUDGE)] = Better.LOWER,
    judge: Annotated[
        str | None,
        typer.Option(help="Judge as the gate does: facts, convergence or performance.", rich_help_panel=JUDGE),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option(
            help="The judge's numbers; default: ci/nightjar/policies.toml or ci/policies.toml, where one exists.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    baselines: Annotated[
        Path | None,
        typer.Option(
            help="Folder of committed baselines, for --cell; default: ci/nightjar/baselines or ci/baselines.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    cell: Annotated[
        str, typer.Option(help="Cell whose policies and baseline the judge uses.", rich_help_panel=JUDGE)
    ] = "",
    rtol: Annotated[
        float | None,
        typer.Option(
            help="Judge by curves that must equal those of the good end within this tolerance.", rich_help_panel=JUDGE
        ),
    ] = None,
    paired: Annotated[
        bool | None,
        typer.Option(
            "--paired/--no-paired",
            help="Measure a metric in pairs of rungs, so that it does not matter how fast the machine is right then "
            "(default: yes, unless --deterministic).",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    sensors: Annotated[
        bool,
        typer.Option(
            "--sensors/--no-sensors",
            help="Run rungs once more to read the programs that XLA compiles, and look first where these change.",
            rich_help_panel=JUDGE,
        ),
    ] = True,
    bad_too: Annotated[
        list[str] | None,
        typer.Option(
            help="Count a crash, timeout or import error as bad instead of cannot tell.", rich_help_panel=JUDGE
        ),
    ] = None,
    failure: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Count a failure as bad only where its output matches; other failures cannot tell.",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    verdict: Annotated[
        Path | None,
        typer.Option(
            help="Start from the verdicts.json of a night; the argument is a regressed series (default: the worst).",
            rich_help_panel=JUDGE,
        ),
    ] = None,
    executor: Annotated[str | None, typer.Option(help="Where tests run: local, docker.", rich_help_panel=TEST)] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Variable that the test also inherits; PREFIX* is a pattern.", rich_help_panel=TEST
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Secret that the test inherits; masked in all that it leaves.", rich_help_panel=TEST
        ),
    ] = None,
    suspect: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Look first at rungs whose name matches, such as a commit's subject; others stay possible.",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Probes to run in parallel (default: all cores for exit-code tests, otherwise 1).",
            rich_help_panel=BUDGET,
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Wall time of one test, seconds.", rich_help_panel=TEST)
    ] = 600.0,
    confidence: Annotated[
        float, typer.Option(help="Stop when the culprit has this probability.", rich_help_panel=BUDGET)
    ] = 0.99,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Treat the test as deterministic: run each version once.", rich_help_panel=JUDGE
        ),
    ] = False,
    max_tests: Annotated[
        int, typer.Option(min=2, help="Most tests to run, over all ladders; a pair is one.", rich_help_panel=BUDGET)
    ] = 400,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Start no test after so many minutes of work, over all ladders.", rich_help_panel=BUDGET
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Profile both sides of the culprit and compare.", rich_help_panel=OUTPUT)
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore earlier probes of the same question.", rich_help_panel=OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the ladder and the expected work.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print nightjar.answer/1.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Find the release, image or commit that changed a test.

    The order of the ends says what is looked for: a regression, or (good is the newer one) a fix. An interrupted
    bisection goes on with the same command. Exit codes: 0 found; 2 bad usage; 3 a tool failed; 4 cannot tell, or
    nothing to be found, or the machine is too loud.

    Example: nightjar-ci bisect --package jax --good 0.4.31 --bad 0.5.0 --metric us_per_step -- python scan_3x3.py
    """
    parameters = locals()  # each option is a field of that name
    from nightjar_ci.bisect.options.options import options_from_parameters
    from nightjar_ci.bisect.options.plan import make_plan
    from nightjar_ci.bisect.result.progress import Progress
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
            return
        options = options_from_verdict(options, verdict, series)
    plan = make_plan(options, settings, progress.say)
    folder = settings.bisections_dir / plan.question.id
    if dry_run:
        _print_plan(plan, folder, settings, progress.say, as_json)
        return
    keep_out_of_git(settings)
    _run(plan, folder, settings, progress, fresh=fresh, as_json=as_json)


def _run(plan: Plan, folder: Path, settings: Settings, progress: Progress, *, fresh: bool, as_json: bool) -> None:
    """Bisects, and prints the answer."""
    from nightjar_ci.bisect.result.report import print_answer, to_json, write_answer
    from nightjar_ci.bisect.run import run_bisection
    from nightjar_ci.bisect.state import read_probes, set_aside

    if fresh:
        set_aside(folder)
    progress.go_on(len(read_probes(folder)))
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


def _print_plan(plan: Plan, folder: Path, settings: Settings, say: OnLine, as_json: bool) -> None:
    """Prints the ladder and the expected work."""
    import json
    from statistics import median

    from nightjar_ci.bisect.ladders.rung import find_moving
    from nightjar_ci.bisect.probing.measured_cost import measure_own_bytes, measure_package_bytes, read_measured_cost
    from nightjar_ci.bisect.probing.rung_setup import RungSetup
    from nightjar_ci.bisect.search.estimate_cost import estimate
    from nightjar_ci.bisect.state import read_bisection
    from nightjar_ci.report.html import show_duration

    recorded = read_bisection(folder)
    ladder = plan.make_ladder() if recorded is None else recorded.stages[0].ladder
    setup = RungSetup(folder, plan.question, settings, plan.python)
    ready = [setup.is_ready(ladder, index, 0) for index in range(len(ladder.rungs))]
    measured = read_measured_cost(settings.bisections_dir, plan.question)
    work = estimate(
        len(ladder.rungs),
        plan.settings,
        measured.build_s,
        measured.test_s,
        ready.__getitem__,
        sensors=plan.sensors,
    )
    made = [setup.prefix(ladder, index) for index in range(len(ladder.rungs)) if ready[index]]
    prefixes = [prefix for prefix in made if prefix is not None]
    disk_bytes = cache_bytes = None
    if prefixes:
        moving = find_moving(ladder.rungs)
        disk_bytes = int(work.builds * median(map(measure_own_bytes, prefixes)))
        cache_bytes = int(work.builds * median(measure_package_bytes(prefix, moving) for prefix in prefixes))
    if as_json:
        expected: dict[str, float | None] = {"builds": work.builds, "tests": work.tests, "duration_s": work.duration_s}
        expected |= {"build_s": measured.build_s, "test_s": measured.test_s, "disk_bytes": disk_bytes}
        expected["cache_bytes"] = cache_bytes
        plain = {"folder": str(folder), "find": plan.find, "expected": expected, **ladder.model_dump(mode="json")}
        typer.echo(json.dumps(plain, indent=1))
        return
    for index, rung in enumerate(ladder.rungs):
        marks = [text for text in (rung.note, "ready" if ready[index] else None) if text]
        typer.echo(
            f"{index:4d}  {(rung.when or '')[:10]:10}  {rung.name}" + (f" ({', '.join(marks)})" if marks else "")
        )
    for note in ladder.notes:
        typer.echo(f"      note: {note}")
    duration = "" if work.duration_s is None else f", {show_duration(work.duration_s)}"
    typer.echo(
        f"Looking for a {plan.find} on {len(ladder.rungs)} rungs: about {work.builds:.0f} builds and {work.tests:.0f} "
        f"tests{duration}."
    )
    for seconds, name in ((measured.build_s, "build"), (measured.test_s, "run of the test")):
        if seconds is None:
            typer.echo(f"How long a {name} takes is not known: none like it was measured on this machine yet.")
        else:
            typer.echo(f"A {name} takes {seconds:.3g} s, as in earlier bisections.")
    if disk_bytes is not None and cache_bytes is not None:
        typer.echo(
            f"New environments take about {disk_bytes / 1e6:,.0f} MB. They share the packages with uv's cache, which "
            f"grows by about {cache_bytes / 1e6:,.0f} MB, or less where it holds some of these releases."
        )
