"""`nightjar-ci init`: writes a matrix and a workflow for the project of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import DryRun, Variables

if TYPE_CHECKING:
    from nightjar_ci.formats.suite import Case, KnownFailure
    from nightjar_ci.projects.look import Project
    from nightjar_ci.projects.printed_loss import ShortRun


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of the project.")] = Path(),
    env: Variables = None,
    known_failures: Annotated[
        Path | None, typer.Option(help="Night folder whose failing tests become known failures of the matrix.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Time limit of the tests in minutes: each test function runs once before further parameters of any, "
            "and what does not fit is skipped and counted; default: none.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace files that exist; the earlier time limit, variables and known failures stay unless given.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Write a nightly for a project: its matrix and its workflow.

    Looks at pyproject.toml, the configuration of pytest, tests, benchmarks of pytest-benchmark, and training
    scripts; asks nothing. A script without tests beside it runs once, for at most a minute, to find the loss that it
    prints; nothing else runs. Prints the paths of the files. If tests fail in the first night and you know why,
    `--known-failures NIGHT --force` lists them in the matrix: they are counted, and no longer red. A suite that takes
    longer than you want to wait: `--minutes 10`.

    Example: nightjar-ci init --dry-run
    """
    from nightjar_ci.environments.git_tree import ask_git
    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.documents import write_text
    from nightjar_ci.projects.look import look_at
    from nightjar_ci.projects.matrix_text import (
        MATRIX,
        NAME,
        POLICIES,
        as_known_failure,
        describe_run,
        read_origin,
        read_policies,
        render_matrix,
        render_requirement,
        render_workflow,
    )
    from nightjar_ci.projects.removed import find_missing_module

    failing = [] if known_failures is None else _read_failing(known_failures)
    lacking = {case.name: module for case in failing if (module := find_missing_module(case.message or "")) is not None}
    project = look_at(folder, env or (), lacking.values())
    for module in sorted({*lacking.values()}):
        tests = [name for name in lacking if lacking[name] == module]
        text = f"{tests[0]} and {len(tests) - 1} more do not fail, they lack the module {module!r}: not listed."
        typer.echo(f"{text} Their environment is now {project.environment}; add its package if that lacks it", err=True)
    earlier = _read_earlier(folder / MATRIX) if force else _Earlier()
    project = replace(project, variables={**earlier.variables, **project.variables})
    limit_s = earlier.limit_s if minutes is None else 60 * minutes
    known = earlier.known
    if known_failures is not None:
        known = [as_known_failure(case) for case in failing if case.name not in lacking]
    workflow, workflow_text = render_workflow(project)
    existing = [path for path in (folder / MATRIX, folder / workflow) if path.exists()]
    if existing and not (force or dry_run):
        raise InputError(f"{existing[0]} exists already.", "--force replaces it, --dry-run prints what it would be")
    if prefix := (ask_git(folder, "rev-parse", "--show-prefix") or "").strip():
        where = f"move {workflow} there, and run its commands in {prefix}"
        typer.echo(f"note: CI reads workflows at the root of a repository alone: {where}", err=True)
    runs: Mapping[str, ShortRun] = {}
    if not dry_run:
        runs = _run_scripts(folder, project)
    elif project.trainings:
        scripts = ", ".join(project.trainings)
        typer.echo(f"note: {scripts}: not run now; without --dry-run, the loss that it prints is looked for", err=True)
    matrix_text = render_matrix(project, known, limit_s=limit_s, runs=runs)
    files = {folder / MATRIX: matrix_text, folder / workflow: workflow_text}
    gated = [run for run in runs.values() if run.pattern is not None]
    if gated and not (folder / POLICIES).exists():
        files[folder / POLICIES] = read_policies()
    if dry_run:
        typer.echo("\n".join(f"==> {path} <==\n{text}" for path, text in files.items()))
        return
    for path in files:
        if not path.parent.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path.parent} leads out of {folder}, to {path.parent.resolve()}.", "remove the link")
    for path, text in files.items():
        write_text(path, text)
        typer.echo(path)
    if read_origin() and render_requirement(read_origin()) == NAME:
        text = f"note: {workflow} installs {NAME} from a package index, but here it came from a local file or folder"
        typer.echo(f"{text}: write into it where your CI gets it", err=True)
    before = "" if folder == Path() else f"cd {folder} && "
    for run in gated:
        typer.echo("\n".join(describe_run(run)), err=True)
    if not gated:
        typer.echo(f"next: {before}nightjar-ci nightly {MATRIX}", err=True)


def _run_scripts(folder: Path, project: Project) -> Mapping[str, ShortRun]:
    from contextlib import chdir

    from nightjar_ci.projects.printed_loss import SHORT_RUN_S, run_briefly
    from nightjar_ci.settings import keep_out_of_git, read_settings

    runs = {}
    with chdir(folder):
        if project.trainings:
            keep_out_of_git(read_settings())
        for script in project.trainings:
            typer.echo(
                f"{script}: runs once, for at most {SHORT_RUN_S:.0f} s, to find the loss that it prints", err=True
            )
            runs[script] = run_briefly(script, project.environment)
            if runs[script].pattern is None:
                typer.echo(f"{script}: its loss is not gated: {runs[script].problem}", err=True)
    return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """What a matrix that is replaced was told."""

    limit_s: float | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    known: Sequence[KnownFailure] = ()


def _read_earlier(path: Path) -> _Earlier:
    """What the matrix at a path was told; nothing where it is not valid."""
    from nightjar_ci.errors import InputError
    from nightjar_ci.night.matrix import read_matrix

    try:
        matrix = read_matrix(path)
    except InputError:
        return _Earlier()
    options = [entry.tests for entry in matrix.job if entry.tests is not None]
    return _Earlier(
        limit_s=next((tests.limit_s for tests in options if tests.limit_s is not None), None),
        variables={key: text.replace("{{", "{").replace("}}", "}") for key, text in matrix.defaults.env.items()},
        known=tuple(dict.fromkeys(known for tests in options for known in tests.known_failure)),
    )


def _read_failing(night: Path) -> list[Case]:
    from nightjar_ci.formats.night_results import read_night_results

    suites = read_night_results(night).read_suites().values()
    return [case for suite in suites for case in suite.cases if case.state == "failed"]
