"""`nightjar-ci try`: runs a project's tests in two environments and says what differs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.bisect import Better
from nightjar_ci.commands.options import DryRun, Json, Variables

if TYPE_CHECKING:
    from nightjar_ci.environments.prepare import Environments
    from nightjar_ci.night.matrix import Matrix
    from nightjar_ci.projects.look import Project
    from nightjar_ci.projects.sides import KnownJax, Sides
    from nightjar_ci.projects.trial import Trial
    from nightjar_ci.settings import Settings
    from nightjar_ci.web.package_index import File


_WORKERS = 2  # jobs at the same time: one of each side
_FARTHEST = 16  # releases back at a time, in search of one under which a test passes


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FOLDER | -- COMMAND...]", help="Folder of the project; with --commits, a command."),
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option(
            "--with", help="What to try, such as jax==0.10.2,numpy<2; default: the newest JAX for the project's Python."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="What to compare with: requirements such as jax==0.9.0, or an environment; default: the installed "
            "JAX, or the newest that the project's lock, CI or last release knew."
        ),
    ] = None,
    commits: Annotated[
        str | None,
        typer.Option(
            metavar="BASE..HEAD",
            help="Compare two commits instead, by the tests or a command.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="time|NAME|REGEX", help="Judge the command by its time, or by NAME=VALUE that it prints."),
    ] = None,
    better: Annotated[Better, typer.Option(help="Which values are better.")] = Better.LOWER,
    env: Variables = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Time limit of the tests of each side: each test function runs once before further parameters of any; "
            "default: the matrix's, or 10. With a command: of all runs.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run a project's tests with the newest JAX; say what differs.

    Uses ci/nightjar/matrix.toml if it exists, else what `init` would write. If JAX, pytest and the project are
    installed in the current environment, only JAX differs between the two sides; otherwise both are fresh environments.
    Without `--against`, earlier releases are tried while no test passes or tests miss a name that JAX removed. Exit
    code 1: a test that passed fails, or misses a removed name; 4: no test passed, or too few on both sides to tell.

    A command runs on both commits in turn until it is decided whether the second is worse (about 2 % of answers err).

    Example: nightjar-ci try . --with jax==0.10.2 --against jax==0.10.1
    """
    from nightjar_ci.environments.prepare import Environments
    from nightjar_ci.errors import InputError
    from nightjar_ci.night.matrix import expand
    from nightjar_ci.projects.look import look_at
    from nightjar_ci.projects.matrix_text import MATRIX
    from nightjar_ci.projects.trial import plan_trial
    from nightjar_ci.projects.trial_text import find_exit_code, render_json, render_trial
    from nightjar_ci.settings import keep_out_of_git, read_settings

    words = words or []
    is_folder = len(words) == 1 and (commits is None or Path(words[0]).is_dir())
    folder, program = Path(), words
    if is_folder:
        folder, program = Path(words[0]), []
    if program and commits is None:
        raise InputError("a command is run with --commits only.", "nightjar-ci try --commits main..HEAD -- COMMAND")
    if metric is not None and not program:
        raise InputError("--metric judges a command.", f"nightjar-ci try --metric {metric} ... -- COMMAND")
    if commits is not None and (requirements or against):
        raise InputError("--commits compares commits, --with and --against environments.", "leave one out")
    project = look_at(folder, env or ())
    os.chdir(folder)
    settings = read_settings()
    if program and commits is not None:
        if dry_run:
            typer.echo(f"{' '.join(program)}   at {commits}")
            return
        from nightjar_ci.commands.try_commits import compare_commits
        from nightjar_ci.formats.night_folder import new_night_id

        keep_out_of_git(settings)
        logs = settings.state_dir / "trials" / new_night_id()
        answer = compare_commits(
            commits,
            program,
            project,
            settings,
            logs,
            metric=metric,
            better=better.value,
            minutes=minutes,
            on_line=lambda line: typer.echo(line, err=True),
        )
        text = f"{' -> '.join(answer.commits)}\n{answer.text}\nLogs: {logs}"
        if as_json:
            text = json.dumps({**asdict(answer), "folder": str(logs)}, indent=1)
        typer.echo(text)
        raise typer.Exit(answer.exit_code)
    matrix = _read_matrix(project, minutes)
    tests = [job for job in expand(matrix) if job.kind == "test"]
    if not tests:
        raise InputError(f"{MATRIX}: no job is of the kind 'test'.")
    if commits is None:
        question = _ask(project, tests[0].environment, settings, requirements, against)
    else:
        question = _ask_commits(tests[0].environment, commits)
    if others := sorted({job.environment for job in tests} - {tests[0].environment}):
        question.notes.append(f"No job is tried in {', '.join(others)}, though the matrix names it.")
    typer.echo(f"{project.name}: {question.sides.why}", err=True)
    for note in question.notes:
        typer.echo(note, err=True)
    if dry_run:
        for job in plan_trial(matrix, question.sides.before, question.sides.after)[1]:
            typer.echo(f"{job.id}: {' '.join(job.command)}   in {job.environment}")
        return
    keep_out_of_git(settings)
    with Environments(settings) as environments:
        trial = _run(matrix, question, settings.state_dir / "trials", environments)
    if as_json:
        typer.echo(json.dumps(render_json(trial, question.notes), indent=1))
    else:
        typer.echo("\n".join(render_trial(trial, {job.id: job.command for job in tests}, question.notes)))
    raise typer.Exit(find_exit_code(trial))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The two sides, and the releases of JAX from which an earlier one may be tried, unless the user names one."""

    sides: Sides
    files: list[File]
    releases: list[str]
    notes: list[str]
    searches: bool


def _ask(
    project: Project, environment: str, settings: Settings, requirements: str | None, against: str | None
) -> _Question:
    from nightjar_ci.environments.current import find_current
    from nightjar_ci.environments.project import choose_python, is_project
    from nightjar_ci.environments.run_uv import find_index
    from nightjar_ci.projects.sides import (
        choose_sides,
        find_installed_jax,
        find_newer,
        find_python_version,
        list_releases,
    )
    from nightjar_ci.web.package_index import read_files

    index_url = settings.index_url or find_index()
    files = read_files("jax", index_url)
    installed, needed = find_installed_jax(Path.cwd()), None
    python = find_current().version.rstrip("+")
    if installed is None and is_project(environment):
        needed = choose_python(Path.cwd())
    if needed is not None:  # both sides have another Python: the one that uv finds
        python = find_python_version(needed) or python
    releases = list_releases(files, python)
    tested = None if against is not None else _find_known(project, files, releases, index_url)
    newer = None
    if requirements is None and needed is None:
        newer = find_newer(files, python)
    return _Question(
        sides=choose_sides(environment, installed, releases, wanted=requirements, against=against, known=tested),
        files=files,
        releases=releases,
        notes=[] if newer is None else [newer],
        searches=against is None,
    )


def _ask_commits(environment: str, text: str) -> _Question:
    from nightjar_ci.commands.try_commits import find_commits
    from nightjar_ci.projects.sides import INSTALLED, Sides, find_installed_jax

    base = environment if find_installed_jax(Path.cwd()) is None else INSTALLED
    _, old, new = find_commits(text, Path.cwd())
    sides = Sides(before=f"commit:{old}:{base}", after=f"commit:{new}:{base}", why=f"its tests at {text}", base=base)
    return _Question(sides=sides, files=[], releases=[], notes=[], searches=False)


def _run(matrix: Matrix, question: _Question, trials: Path, environments: Environments) -> Trial:
    """The trial; while no test passes on its first side, with an earlier JAX."""
    from nightjar_ci.formats.night_folder import new_night_id
    from nightjar_ci.projects.trial import explain_removals, find_earlier_jax, plan_trial, run_trial

    def run(sides: Sides) -> Trial:
        return run_trial(
            *plan_trial(matrix, sides.before, sides.after), trials / new_night_id(), environments, _WORKERS
        )

    trial, step = explain_removals(run(question.sides), question.files), 1
    while question.searches and step <= _FARTHEST:
        jax = find_earlier_jax(trial, question.releases, step)
        if jax is None:
            break
        typer.echo(f"With jax {trial.before.jax} the same tests fail: trying jax {jax}", err=True)
        again = run(question.sides.with_jax_before(jax))
        if again.before.counts is None or again.before.n_passed < trial.before.n_passed:  # that one tells less
            break
        trial, step = explain_removals(again, question.files), 2 * step
    return trial


def _find_known(project: Project, files: list[File], releases: list[str], index_url: str) -> KnownJax | None:
    """The JAX that the project of the working directory knew: in its files, or else at its last release."""
    from nightjar_ci.errors import NightjarError
    from nightjar_ci.projects.sides import find_jax_at_release, find_known_jax
    from nightjar_ci.web.package_index import read_files

    try:
        return find_known_jax(Path.cwd(), releases) or find_jax_at_release(
            project.name, read_files(project.name, index_url), files, releases
        )
    except NightjarError:  # it is in no index
        return None


def _read_matrix(project: Project, minutes: float | None) -> Matrix:
    """The matrix of a project in the working directory, or else the one that `init` would write; with a time limit."""
    from nightjar_ci.night.matrix import read_matrix
    from nightjar_ci.projects.matrix_text import MATRIX, render_matrix
    from nightjar_ci.projects.trial import with_time_limit

    if Path(MATRIX).exists():
        matrix = read_matrix(Path(MATRIX))
        given = {name: value.replace("{", "{{").replace("}", "}}") for name, value in project.variables.items()}
        jobs = (entry.model_copy(update={"env": {**entry.env, **given}}) for entry in matrix.job)
        matrix = matrix.model_copy(update={"job": tuple(jobs)})
    else:
        with TemporaryDirectory() as folder:
            path = Path(folder, "matrix.toml")
            path.write_text(render_matrix(project), encoding="utf-8")
            matrix = read_matrix(path)
    return with_time_limit(matrix, None if minutes is None else 60 * minutes)
