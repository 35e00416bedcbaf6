"""The causes of one night, as its report and its messages show them.

In: the results and verdicts of a night, and the stored nights before it. Out: causes, each with the one command to run
next.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from nightjar_ci.causes.causes import Cause, find_causes
from nightjar_ci.causes.explained import read_answer
from nightjar_ci.causes.status import Row, is_bisectable, read_status
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.run_record import describe_devices
from nightjar_ci.formats.verdict import NightVerdicts
from nightjar_ci.gate.advice import find_matrix
from nightjar_ci.store import Store
from nightjar_ci.store.nights import StoredNight

WINDOW = 60  # earlier nights in which to look for the start of a cause
_COMMAND = re.compile(r"`(nightjar-ci [^`]+)`")


def gather_causes(results: NightResults, verdicts: NightVerdicts, store: Store, policies: Path) -> tuple[Cause, ...]:
    """The causes of a night, red first; the store has the earlier nights of its matrix."""
    earlier = store.latest_nights(window=WINDOW, matrix=results.night.matrix)
    causes = find_causes(find_row(results, verdicts, earlier), cache(store.environment_of))
    return tuple(
        replace(
            cause,
            explanation="\n".join(filter(None, (read_answer(cause, results), cause.explanation))),
            command=find_command(cause, results, policies),
        )
        for cause in causes
    )


def find_row(results: NightResults, verdicts: NightVerdicts, earlier: Sequence[StoredNight]) -> Row:
    """The row of a night: the like nights of `earlier` that began before it, oldest first."""
    tonight = describe_night(results, verdicts)
    before = [night for night in earlier if night.id != tonight.id and night.started_at <= tonight.started_at]
    status = read_status([*before, tonight])
    return next(row for row in status.rows if row.latest.id == tonight.id)


def describe_night(results: NightResults, verdicts: NightVerdicts) -> StoredNight:
    """A night from its folder, as the store would give it."""
    night = results.night
    environments = {outcome.job: outcome.environment for outcome in night.jobs}
    environment = environments.get(min(environments, default=""))  # nights have equal jobs
    recorded = next((results.records[job].environment for job in sorted(results.records)), None)
    packages, python = dict[str, str](), None
    if recorded is not None and environments.get(min(results.records)) == environment:
        packages, python = recorded.packages, recorded.python
    return StoredNight(
        id=night.id,
        matrix=night.matrix,
        started_at=night.started_at,
        finished_at=night.finished_at,
        git_sha=None if night.git is None else night.git.sha,
        ran=len(night.jobs),
        not_run=night.not_run,
        failed=tuple(failed for failed in night.jobs if not failed.completed),
        statuses={(verdict.series, verdict.judge): verdict.status for verdict in verdicts.verdicts},
        loud=tuple(verdict for verdict in verdicts.verdicts if verdict.status != "ok"),
        environment=environment,
        devices=None if recorded is None else describe_devices(recorded.devices),
        packages=packages,
        python=python,
    )


def find_command(cause: Cause, results: NightResults, policies: Path) -> str | None:
    """The one command that settles or explains a cause, ready to paste; None if unknown."""
    if cause.kind == "failed":
        outcome = results.night.outcome_of(cause.jobs[0])
        cell = cause.jobs[0] if outcome is None else outcome.cell
        return _fill(_render_run(cause.jobs[0]), results.folder, policies, cell)
    alike = [verdict for verdict in cause.verdicts if verdict.status == cause.verdicts[0].status]
    advised = [
        match[1]
        for verdict in alike
        for line in (*verdict.details, verdict.explanation)
        if (match := _COMMAND.search(line))
    ]
    series = {verdict.series for verdict in cause.verdicts}
    if len(series) > 1 and len(advised) == len(cause.verdicts) and all(" --ended " in command for command in advised):
        return shlex.join(["nightjar-ci", "accept", "*", "--ended", "--night", cause.since, "--reason", "WHY"])
    if advised:
        return _fill(advised[0], results.folder, policies, cause.verdicts[0].cell)
    if cause.kind != "regressed":
        return None
    verdict = cause.verdicts[0]
    own = next((outcome.environment for outcome in results.night.jobs if outcome.cell == verdict.cell), None)
    if is_bisectable(verdict, good=cause.good is not None, changes=cause.changes, environment=own):
        verdicts = results.folder / "verdicts.json"
        return shlex.join(["nightjar-ci", "bisect", "--verdict", str(verdicts), cause.verdicts[0].series])
    # nothing that a night records has changed: does it happen again?
    return _fill(_render_run(f"{cause.verdicts[0].cell}*"), results.folder, policies, cause.verdicts[0].cell)


def _render_run(jobs: str) -> str:
    return shlex.join(["nightjar-ci", "run", "MATRIX", "--jobs", jobs])


def _fill(command: str, night: Path, policies: Path, cell: str) -> str:
    """The command with the night's path in place of NIGHT and the path of the cell's matrix, if found, of MATRIX."""
    paths = {"NIGHT": night, "MATRIX": find_matrix(policies, cell)}
    for word, path in paths.items():
        if path is not None:
            command = re.sub(rf"(?<!\S){word}(?!\S)", shlex.quote(str(path)).replace("\\", r"\\"), command)
    return command
