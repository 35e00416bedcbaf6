"""Acceptance of a change: the night, the level, the person, and new baselines.

In: a series that the store has, and a reason. Out: the file to commit, with one more entry, and new baselines of the
series, made from the available results. This module writes nothing.
"""

from __future__ import annotations

import difflib
import getpass
import math
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.baselines.accepted import Entry, add_entry, read_accepted
from nightjar_ci.baselines.baseline import (
    ConvergenceBaseline,
    FactsBaseline,
    make_convergence,
    make_facts,
    read_facts,
    replace_program,
)
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.suite import SUITE
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.baseline_runs import find_fault, gather_cells
from nightjar_ci.judges.history.screening import screen_segments
from nightjar_ci.judges.history.segment import current_segment
from nightjar_ci.store import Store
from nightjar_ci.untrusted.git import git_command

Remade = ConvergenceBaseline | FactsBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The files that accepting a change writes.

    Attributes:
        text: of the series' file, with the new entry.
        judges: the judges of the series; `convergence` and `facts` compare with a committed baseline.
    """

    path: Path
    text: str
    entry: Entry
    judges: tuple[str, ...]


def accept(
    store: Store,
    baselines: Path,
    policies: Policies,
    name: str,
    *,
    reason: str,
    night: str | None,
    false_alarm: bool = False,
) -> Acceptance:
    """Accepts a change of a series, or notes that there was none.

    Args:
        night: first night of the new level; default: the first night of the regression found by the gate, else of the
            last change in the history, else the latest night.
    """
    if not reason.strip():
        raise InputError("--reason is empty: say why the change is wanted.")
    judges = store.judged()
    _check_name(name, {*judges, *(f"{cell}/{measure}" for cell, measure in store.series())})
    if judges.get(name) == ("tests",) and parse_series_name(name).measure != SUITE and not false_alarm:
        hint = "if it may fail, list it in the matrix: [[job.tests.known_failure]]"
        raise InputError(f"{name} is one test: it has no level to accept.", hint)
    series = store.one_series(name)
    nights: Sequence[str] = store.night_ids() if series is None else series.nights
    if night is None:
        accepted = [entry.night for entry in read_accepted(baselines).get(name, ())]
        night = (
            _find_regression(store.history_verdict(name), accepted)
            or _find_change(series, policies, accepted)
            or nights[-1]
        )
    elif night not in nights:
        raise InputError(f"{name} was not measured in night {night!r}.", f"the latest are {', '.join(nights[-3:])}")
    level = unit = None
    if series is not None:
        value, unit = float(series.values[series.nights.index(night)]), series.unit
        level = value if math.isfinite(value) else None
    entry = Entry(
        night=night,
        level=level,
        unit=unit,
        reason=reason.strip(),
        by=find_person(),
        at=now(),
        false_alarm=false_alarm,
    )
    path, text = add_entry(baselines, name, entry)
    return Acceptance(path=path, text=text, entry=entry, judges=tuple(judges.get(name, ())))


def accept_end(
    store: Store,
    baselines: Path,
    name: str,
    *,
    reason: str,
    night: str | None,
    renamed_to: str | None = None,
) -> list[Acceptance]:
    """Accepts the end of a series, or of all series of a cell.

    Args:
        name: the series, or a cell.
        night: the first night without it; default: the first after the last finite value.
        renamed_to: the series that continues its history.
    """
    if not reason.strip():
        raise InputError("--reason is empty: say why it has ended.")
    all_names = {*store.judged(), *(f"{cell}/{measure}" for cell, measure in store.series())}
    names = [name]
    if "/" not in name:  # a cell
        names = sorted(series for series in all_names if parse_series_name(series).cell == name) or [name]
        if renamed_to is not None:
            raise InputError(f"--renamed-to {renamed_to}: {name} is a cell.", "rename its series one by one")
    for checked in filter(None, (*names, renamed_to)):
        _check_name(checked, all_names)
    accepted = []
    for series in names:
        first = _find_end(store, series, night)
        entry = Entry(night=first, ended=True, renamed_to=renamed_to, reason=reason.strip(), by=find_person(), at=now())
        path, text = add_entry(baselines, series, entry)
        accepted.append(Acceptance(path=path, text=text, entry=entry, judges=()))
    return accepted


def _find_end(store: Store, name: str, night: str | None) -> str:
    """The first night without a series: the given one, or the first after its last finite value."""
    nights = store.night_ids()
    if night is not None:
        if night not in nights:
            raise InputError(f"the store has no night {night!r}.", f"the latest are {', '.join(nights[-3:])}")
        return night
    series = store.one_series(name)
    if series is None:
        return nights[-1]
    later = nights
    finite = [measured for measured, value in zip(series.nights, series.values, strict=True) if math.isfinite(value)]
    if finite:
        later = nights[nights.index(finite[-1]) + 1 :]
    if not later:
        hint = "name the first night without it with --night, or accept its change without --ended"
        raise InputError(f"{name} was measured in the latest night, {nights[-1]}: it has not ended.", hint)
    return later[0]


def find_person() -> str:
    """Git's user, as `Name <address>`; else the name of the account."""
    name, address = _read_git("user.name"), _read_git("user.email")
    if name and address:
        return f"{name} <{address}>"
    if name or address:
        return name or address
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in some containers
        return "unknown"


def _read_git(key: str) -> str:
    """A value of git's configuration; empty if there is none."""
    try:
        run = subprocess.run(git_command(Path.cwd(), "config", key), capture_output=True, text=True, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()


def _check_name(name: str, all_names: Collection[str]) -> None:
    if name in all_names:
        return
    hint = None
    if not all_names:
        hint = "the store is empty: gate a night first"
    elif near := difflib.get_close_matches(name, all_names, n=1, cutoff=0.4):
        hint = f"did you mean {near[0]!r}?"
    expected = f", one of the {len(all_names)} that `nightjar-ci store CELL` lists"
    if len(all_names) <= 10:
        expected = ", one of " * bool(all_names) + ", ".join(sorted(all_names))
    raise InputError(f"the store knows no series {name!r}: expected CELL/MEASURE{expected}.", hint)


def _find_regression(verdict: Verdict | None, accepted: Collection[str]) -> str | None:
    """The first night of a regression found by the gate, unless already accepted."""
    if verdict is None or verdict.status != "regressed":
        return None
    since = verdict.policy.get("since")
    if isinstance(since, str) and since not in accepted:
        return since
    return None


def _find_change(series: Series | None, policies: Policies, accepted: Collection[str]) -> str | None:
    """The first night after the last change in a series' history, or None if there is none."""
    if series is None:
        return None
    if (policy := policies.for_history(series.cell, series.measure)) is None:
        return None
    segment = current_segment(series, policy, accepted)
    (screening,) = screen_segments([segment])
    if screening is None or screening.change is None:
        return None
    return segment.nights[screening.change.index]


def remake_baselines(
    name: str, judges: Collection[str], results: Iterable[tuple[Outcome, RunRecord | None]], baselines: Path
) -> tuple[tuple[Remade, ...], tuple[str, ...]]:
    """The baselines that a series is judged against, made from the available results.

    Returns: the baselines, and a reason for each that could not be made.
    """
    cell, measure = parse_series_name(name)
    runs = next(iter(gather_cells(results, cell)), None)
    made: list[Remade] = []
    refused: list[str] = []
    if not {"convergence", "facts"} & set(judges):
        return (), ()
    if runs is None or runs.failed:
        why = f"{cell} left no results in that night."
        if runs is not None:
            why = f"{cell}: {', '.join(runs.failed)} did not complete."
        return (), (why,)
    try:
        if "facts" in judges:
            facts = make_facts(cell, runs.records)
            committed = read_facts(baselines, cell, facts.environment.facts_key)
            made.append(replace_program(committed, facts, measure))
        if "convergence" in judges and (fault := find_fault(runs, (measure,))) is not None:
            refused.append(fault)
        elif "convergence" in judges:
            made.append(make_convergence(cell, runs.command, runs.records, runs.replicas))
    except InputError as error:
        refused.append(error.message)
    return tuple(made), tuple(refused)
