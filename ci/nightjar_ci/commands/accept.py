"""`nightjar-ci accept`: record an intended change in a file to commit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightjar_ci.commands.options import Baselines, Policies

if TYPE_CHECKING:
    from nightjar_ci.gate.accept import Remade
    from nightjar_ci.store import Store


def command(
    series: Annotated[
        str,
        typer.Argument(
            help="A series, such as gpt_tiny-train-cpu-f32-dp1/step_time; a cell; a pattern, such as 'gpt*/step_time'."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Reason for the change.", show_default=False)],
    night: Annotated[
        str | None, typer.Option(help="First night of the new level; default: each series' latest change.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="The series is no longer measured: from --night on it is not due.")
    ] = False,
    false_alarm: Annotated[
        bool, typer.Option("--false-alarm", help="Nothing had changed: keep the history, count the red as wrong.")
    ] = False,
    renamed_to: Annotated[
        str | None, typer.Option(help="The series continues under this name and keeps its history.")
    ] = None,
    baselines: Baselines = None,
    policies: Policies = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file, write nothing.")] = False,
) -> None:
    """Accept an intended change: record it in a file that you commit.

    Adds an entry to the series' file in the folder of baselines, and prints its path. From that night on the gate
    compares the series with its new level. The baseline of a curve or of compile facts is remade from the stored
    results of that night; if they are too few (curves need ten seeds), stderr names the command that makes it.

    With --ended the series, or all series of a cell, are not due until they are measured again. A pattern accepts all
    series that are red in the latest night (with --ended: absent), with --night only those that began there: '*' and
    --night accept a whole cause. With --false-alarm no level and no baseline changes, and the status page counts the
    red among the wrong ones. Delete an entry to undo it.

    Example: nightjar-ci accept gpt_tiny-train-cpu-f32-dp1/step_time --reason "twice the vocabulary, #812"
    """
    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.formats.project_files import find_baselines, find_policies
    from nightjar_ci.formats.series_name import parse_series_name
    from nightjar_ci.gate.accept import accept, accept_end, remake_baselines
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    if false_alarm and (ended or renamed_to is not None):
        raise InputError("--false-alarm excludes --ended and --renamed-to.", "a series that ended was red for a reason")
    policies, baselines = find_policies(policies), find_baselines(baselines)
    store, names = open_store(read_settings()), [series]
    is_cell = "/" not in series and not ended  # accept_end knows cells
    is_pattern = is_cell or any(wildcard in series for wildcard in "*?")
    if is_pattern and renamed_to is None and series not in store.judged():
        names = _find_red(series, store, baselines, night, ended=ended, tests=false_alarm)
    if ended or renamed_to is not None:
        for name in names:
            for end in accept_end(store, baselines, name, reason=reason, night=night, renamed_to=renamed_to):
                _write({end.path: end.text}, dry_run=dry_run)
        return
    limits = read_policies(policies)
    changes = [
        accept(store, baselines, limits, name, reason=reason, night=night, false_alarm=false_alarm) for name in names
    ]
    if false_alarm:
        _write({change.path: change.text for change in changes}, dry_run=dry_run)
        return
    for name, change in zip(names, changes, strict=True):
        cell = parse_series_name(name).cell
        made, refused = remake_baselines(name, change.judges, store.results_of(cell, change.entry.night), baselines)
        files = {change.path: change.text, **dict(_render(baseline, baselines, cell) for baseline in made)}
        _write(files, dry_run=dry_run)
        for why in refused:
            typer.echo(f"baseline not made: {why}", err=True)
        if refused:
            typer.echo(_advise(cell, policies, baselines, facts_only="convergence" not in change.judges), err=True)


def _find_red(pattern: str, store: Store, folder: Path, night: str | None, *, ended: bool, tests: bool) -> list[str]:
    """The series of a pattern that are red in the latest nights (`ended`: absent) and not accepted; perhaps `tests`."""
    from nightjar_ci.baselines.accepted import read_accepted
    from nightjar_ci.causes.status import read_status
    from nightjar_ci.causes.tonight import WINDOW
    from nightjar_ci.errors import InputError
    from nightjar_ci.formats.globs import matches

    accepted = read_accepted(folder)
    names = dict[str, None]()  # in the report's order
    for opened in read_status(store.latest_nights(window=WINDOW)).open:
        verdict, since = opened.verdict, opened.since.id
        is_red = verdict.status == "regressed" and (tests or verdict.judge != "tests")
        if ended:
            is_red = verdict.judge == "presence"
        is_meant = matches(verdict.series, pattern) or matches(verdict.cell, pattern)
        is_accepted = any(entry.night >= since and entry.ended == ended for entry in accepted.get(verdict.series, ()))
        named = verdict.policy.get("since", since)  # perhaps before the nights that were read
        if is_red and is_meant and night in (None, since, named) and not is_accepted:
            names[verdict.series] = None
    if not names:
        began = f" since night {night}" * (night is not None)
        status, hint = "regressed", "list failing tests in the matrix, if they may fail: [[job.tests.known_failure]]"
        if ended:
            status, hint = "is absent", ""
        why = f"no series that matches {pattern!r} {status} in the latest nights{began}"
        raise InputError(f"nothing to accept: {why}.", hint or None)
    return list(names)


def _advise(cell: str, policies: Path, baselines: Path, *, facts_only: bool) -> str:
    from nightjar_ci.gate.advice import render_baseline

    return (
        render_baseline(cell, policies, baselines, facts_only=facts_only)
        or f"no matrix was found that has the cell {cell}: make its baseline with the matrix that has it"
    )


def _render(baseline: Remade, folder: Path, cell: str) -> tuple[Path, str]:
    from nightjar_ci.baselines.baseline import FactsBaseline, convergence_path, facts_path, render

    if isinstance(baseline, FactsBaseline):
        return facts_path(folder, cell, baseline.environment.facts_key), render(baseline)
    return convergence_path(folder, cell), render(baseline)


def _write(files: Mapping[Path, str], *, dry_run: bool) -> None:
    """Writes files and prints their paths; of a dry run, the text of the first."""
    from nightjar_ci.formats.documents import write_text

    if dry_run:
        print(next(iter(files.values())))
    for path, text in files.items():
        if dry_run:
            typer.echo(f"would write {path}", err=True)
        else:
            write_text(path, text)
            print(path)
