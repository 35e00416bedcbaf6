"""Verdicts on the history of each measure of a night, and the re-runs still to do.

In: what the store has of earlier nights, policies, and the pairs that were run. Out: a verdict for each history that is
long enough, and a note for what was not run again. A suspicious verdict without pairs says how to settle it, or why it
cannot be settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from nightjar_ci.baselines.accepted import Entry, read_accepted
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.reruns import EnvironmentOf, Ran, find_suspicions
from nightjar_ci.judges.history.history import Rerun, judge_history
from nightjar_ci.judges.performance.performance import Pair

MOST_NAMED = 5  # series in a note
COMMAND = "nightjar-ci confirm"


class KnowsSeries(Protocol):
    """What a rename asks of the store."""

    def one_series(self, name: str) -> Series | None:
        """The whole history of a series."""


class Remembering(KnowsSeries, Protocol):
    """What histories ask of the store."""

    def series_before(self, night_id: str) -> Sequence[Series]:
        """What the series of a night measured until then, the night included."""

    def regressions_before(self, night_id: str) -> Mapping[str, Verdict]:
        """What was regressed by its history when it was last judged before a night, by name."""

    def environment_of(self, cell: str, night_id: str) -> Environment | None:
        """The environment that the latest completed run of a cell in a night recorded."""


def _nothing(_: str, __: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a night is judged with, besides what it left.

    Attributes:
        series: tonight's measures with their history.
        earlier: the latest earlier verdict on each history that it found regressed.
        accepted: name of a series to the nights from which on its new level is wanted.
        environment_of: the environment of a cell in a night.
        command: what runs the suspicious series of this night again.
    """

    series: Sequence[Series] = ()
    earlier: Mapping[str, Verdict] = field(default_factory=dict)
    accepted: Mapping[str, Collection[str]] = field(default_factory=dict)
    environment_of: EnvironmentOf = _nothing
    command: str = COMMAND


def remember(store: Remembering, night_id: str, baselines: Path, command: str = COMMAND) -> Memory:
    """What is known of the series of a night.

    Raises:
        InputError: a file of accepted changes cannot be read.
        StoreError: the store cannot be read.
    """
    accepted = read_accepted(baselines)
    return Memory(
        series=with_earlier_names(store.series_before(night_id), accepted, store),
        earlier=store.regressions_before(night_id),
        accepted={name: [e.night for e in entries if not e.ended] for name, entries in accepted.items()},
        environment_of=store.environment_of,
        command=command,
    )


def with_earlier_names(
    series: Sequence[Series], accepted: Mapping[str, Sequence[Entry]], store: KnowsSeries
) -> list[Series]:
    """The series, each with the nights that it had under its earlier name, where a rename was accepted.

    Args:
        series: tonight's.
        accepted: accepted changes by series.
        store: knows the series of the earlier names.
    """
    old_names = {e.renamed_to: name for name, entries in accepted.items() for e in entries if e.renamed_to is not None}
    found = []
    for one in series:
        old = store.one_series(old_names[one.name]) if one.name in old_names else None
        if old is not None and (old.unit, old.better) == (one.unit, one.better):
            before = [place for place, night in enumerate(old.nights) if night not in one.nights]
            one = replace(
                one,
                nights=(*(old.nights[place] for place in before), *one.nights),
                values=np.concatenate([old.values[before], one.values]),
                environments=(*(old.environments[place] for place in before), *one.environments),
            )
        found.append(one)
    return found


def judge_histories(
    memory: Memory,
    policies: Policies,
    jobs: Sequence[Ran],
    reruns: Mapping[str, tuple[str, list[Pair]]],
    notes: list[str],
) -> Iterator[Verdict]:
    """A verdict for every history that is long enough.

    Args:
        memory: of earlier nights.
        policies: which histories are judged, and how.
        jobs: tonight's jobs.
        reruns: cell to the reference environment and the pairs, where there are some.
        notes: gets a line for what was not judged, or not run again.
    """
    judged: dict[str, Verdict] = {}
    young = 0
    for one in memory.series:
        cell, _, measure = one.name.partition("/")
        if (policy := policies.for_history(cell, measure)) is None:
            continue
        rerun = Rerun(reference=reruns[cell][0], pairs=reruns[cell][1]) if cell in reruns else None
        verdict = judge_history(
            one, policy, accepted=memory.accepted.get(one.name, ()), rerun=rerun, earlier=memory.earlier.get(one.name)
        )
        tonight = one.values[-1]
        young += verdict is None and bool(np.isfinite(tonight) and (tonight > 0 or policy.scale == "linear"))
        if verdict is not None:
            judged[one.name] = verdict
    if young:
        notes.append(f"{young} series without a judged history: too few nights on this machine.")
    advice = _advise(judged, memory, policies, jobs, reruns, notes)
    for name, verdict in judged.items():
        told = (*verdict.details, advice[name]) if name in advice else verdict.details
        yield verdict.model_copy(update={"details": told})


def _advise(
    judged: Mapping[str, Verdict],
    memory: Memory,
    policies: Policies,
    jobs: Sequence[Ran],
    reruns: Collection[str],
    notes: list[str],
) -> dict[str, str]:
    """What settles each doubt that no pairs have settled; a note for all of them, and one for each obstacle."""
    doubtful = {name for name, one in judged.items() if one.status in ("cannot_tell", "regressed")}
    unpaired = [one for one in memory.series if one.name in doubtful and one.name.partition("/")[0] not in reruns]
    advice: dict[str, str] = {}
    settled_by: dict[str, list[str]] = defaultdict(list)
    for one in find_suspicions(
        unpaired, policies, jobs, memory.environment_of, accepted=memory.accepted, earlier=memory.earlier
    ):
        if one.reference is not None:
            advice[one.series.name] = f"pairs against {one.reference} would tell: `{memory.command}`"
            settled_by[f"run again by `{memory.command}`"].append(one.series.name)
        else:
            advice[one.series.name] = f"cannot be run again: {one.why_not} (night {one.good_night})"
            settled_by[f"cannot be run again: {one.why_not}"].append(one.series.name)
    for how, names in settled_by.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        notes.append(f"Suspicious without pairs, {how}: {', '.join(names[:MOST_NAMED])}{more}.")
    return advice
