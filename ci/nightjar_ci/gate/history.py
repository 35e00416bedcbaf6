"""Verdicts on the history of each measure of a night, and the re-runs still to do.

In: earlier nights in the store, policies, and the pairs that were run. Out: a verdict for each history that is
long enough, and a note for missing re-runs. A verdict that needs pairs and has none says how to settle it, or why it
cannot be settled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from nightjar_ci.baselines.accepted import Entry, read_accepted
from nightjar_ci.environments.worktree import has_commit
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.reruns import EnvironmentOf, HasCommit, IsSample, RerunRequest, find_reruns
from nightjar_ci.judges.finding import count
from nightjar_ci.judges.history.counter import LEAST as COUNTED
from nightjar_ci.judges.history.counter import judge_counter
from nightjar_ci.judges.history.history import judge_screened
from nightjar_ci.judges.history.pool import weigh_screened
from nightjar_ci.judges.history.screening import ScreenedSeries, screen_all
from nightjar_ci.judges.performance.performance import Pair
from nightjar_ci.store import Store

MOST_NAMED = 5  # series in a note
COMMAND = "nightjar-ci gate --rerun"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The inputs to judging a night besides its results.

    Attributes:
        earlier: the latest earlier verdict on each history, if regressed.
        accepted: name of a series to the nights from which its new level is accepted.
    """

    series: Sequence[Series] = ()
    earlier: Mapping[str, Verdict] = field(default_factory=dict)
    accepted: Mapping[str, Collection[str]] = field(default_factory=dict)
    environment_of: EnvironmentOf = lambda cell, night: None
    command: str = COMMAND
    has_commit: HasCommit = lambda sha: False

    def find_earlier(self, series: Series) -> Verdict | None:
        """The latest earlier verdict on a history, if regressed, of the same runs: of the median or of the worst."""
        earlier = self.earlier.get(series.name)
        if earlier is None or earlier.policy.get("of_worst", False) != series.of_worst:
            return None
        return earlier


def remember(store: Store, night_id: str, baselines: Path, command: str = COMMAND) -> Memory:
    """The known facts about a night's series."""
    accepted = read_accepted(baselines)
    nights = {name: [e.night for e in given if not e.ended and not e.false_alarm] for name, given in accepted.items()}
    for name, entry in [(name, entry) for name, given in accepted.items() for entry in given if entry.renamed_to]:
        nights[entry.renamed_to or ""] = [*nights[name], *nights.get(entry.renamed_to or "", ())]
    return Memory(
        series=with_earlier_names(store.series_before(night_id), accepted, store),
        earlier={
            name: verdict
            for name, verdict in store.regressions_before(night_id).items()
            if not any(
                e.false_alarm and e.night >= str(verdict.policy.get("since") or e.night) for e in accepted.get(name, ())
            )
        },
        accepted=nights,
        environment_of=cache(store.environment_of),  # many measures share one cell
        command=command,
        has_commit=lambda sha: has_commit(Path.cwd(), sha),
    )


def with_earlier_names(series: Sequence[Series], accepted: Mapping[str, Sequence[Entry]], store: Store) -> list[Series]:
    """The series, each with the nights of its earlier name if a rename was accepted."""
    old_names = {e.renamed_to: name for name, entries in accepted.items() for e in entries if e.renamed_to is not None}
    return [_with_earlier_name(tonight, old_names.get(tonight.name), store) for tonight in series]


def _with_earlier_name(series: Series, old_name: str | None, store: Store) -> Series:
    if old_name is None:
        return series
    old = store.one_series(old_name)
    if old is None or (old.unit, old.better) != (series.unit, series.better):
        return series
    before = [index for index, night in enumerate(old.nights) if night not in series.nights]
    return replace(
        series,
        nights=(*(old.nights[index] for index in before), *series.nights),
        values=np.concatenate([old.values[before], series.values]),
        environments=(*(old.environments[index] for index in before), *series.environments),
        worst=None,
    )


def screen_histories(memory: Memory, policies: Policies) -> dict[str, ScreenedSeries]:
    """Tonight's series that are long enough to be judged, screened, by name; counters need no noise estimate.

    A series whose nights have several runs is worse if their median is, or the worst of them.
    """
    counters = judge_counters(memory, policies)
    histories = [series for series in memory.series if series.name not in counters]
    screened = _screen(histories, memory, policies)
    worst = _screen(filter(None, map(Series.take_worst, histories)), memory, policies)
    return screened | {name: run for name, run in worst.items() if run.is_worse and not screened[name].is_worse}


def _screen(histories: Iterable[Series], memory: Memory, policies: Policies) -> dict[str, ScreenedSeries]:
    screened = screen_all(
        [
            (series, policy, memory.accepted.get(series.name, ()), memory.find_earlier(series))
            for series in histories
            if (policy := policies.for_history(series.cell, series.measure)) is not None
        ]
    )
    return weigh_screened({series.series.name: series for series in filter(None, screened)})


def judge_counters(memory: Memory, policies: Policies) -> dict[str, Verdict]:
    """The verdicts on tonight's counters, by name: of the median of a night's runs, or of the worst if only that is."""
    verdicts: dict[str, Verdict] = {}
    for series in memory.series:
        if (policy := policies.for_history(series.cell, series.measure)) is not None:
            for runs in filter(None, (series, series.take_worst())):
                verdict = judge_counter(runs, policy, memory.accepted.get(series.name, ()))
                if verdict is not None and (not runs.of_worst or verdict.status == "regressed"):
                    verdicts[series.name] = verdict
    return verdicts


def judge_histories(
    memory: Memory,
    policies: Policies,
    jobs: Sequence[Outcome],
    reruns: Mapping[str, tuple[str, list[Pair]]],
    notes: list[str],
    is_sample: IsSample = lambda cell, measure: True,
    screened: Mapping[str, ScreenedSeries] | None = None,
) -> Iterator[Verdict]:
    """A verdict for every history that is long enough.

    Args:
        is_sample: whether tonight's results have a measure of a cell as a sample.
    """
    if screened is None:
        screened = screen_histories(memory, policies)
    counters = judge_counters(memory, policies)
    young = [
        series
        for series in memory.series
        if series.name not in (screened.keys() | counters.keys())
        and policies.for_history(series.cell, series.measure) is not None
        and math.isfinite(series.values[-1])
    ]
    notes += _describe_young(young, policies)
    yield from counters.values()
    verdicts = {name: judge_screened(series, reruns.get(series.series.cell)) for name, series in screened.items()}
    unsettled = [
        screened[name]
        for name, verdict in verdicts.items()
        if verdict.status in ("cannot_tell", "regressed") and verdict.cell not in reruns
    ]
    requests = find_reruns(unsettled, policies, jobs, memory.environment_of, memory.has_commit, is_sample)
    notes += _describe_unsettled(requests, memory.command)
    advice = {request.name: _advise(request, memory.command) for request in requests}
    for name, verdict in verdicts.items():
        if name in advice:
            verdict = verdict.model_copy(update={"details": (*verdict.details, advice[name])})
        yield verdict


def _describe_young(young: Sequence[Series], policies: Policies) -> Iterator[str]:
    """One note for all series with too few nights to be judged."""
    if young:
        named = [f"{series.name} ({_count_earlier(series, policies)})" for series in young[:MOST_NAMED]]
        more = ""
        if len(young) > MOST_NAMED:
            more = f" and {len(young) - MOST_NAMED} more"
        yield f"Too few nights for a judged history: {', '.join(named)}{more}."


def _count_earlier(series: Series, policies: Policies) -> str:
    policy, here = policies.for_history(series.cell, series.measure), series.environments[-1]
    earlier = sum(map(math.isfinite, series.values[:-1][np.array(series.environments[:-1]) == here]))
    assert policy is not None  # else it is not usable
    needed = COUNTED if policy.deterministic and earlier < COUNTED else policy.min_nights
    if earlier < needed:
        return f"{earlier} of {count(needed, 'earlier night')}"
    return "too few since its level was accepted"


def _advise(request: RerunRequest, command: str) -> str:
    if request.reference is not None:
        return f"pairs against {request.reference} would tell: `{command}`"
    return f"cannot be run again: {request.why_not} (night {request.screened.good_night})"


def _describe_unsettled(requests: Sequence[RerunRequest], command: str) -> Iterator[str]:
    """A note for all series that pairs would settle, and one for each obstacle."""
    settled_by: dict[str, list[str]] = defaultdict(list)
    for request in requests:
        how = f"cannot be run again: {request.why_not}"
        if request.reference is not None:
            how = f"run again by `{command}`"
        settled_by[how].append(request.name)
    for how, names in settled_by.items():
        more = ""
        if len(names) > MOST_NAMED:
            more = f" and {len(names) - MOST_NAMED} more"
        yield f"Stands out and has no pairs; {how}: {', '.join(names[:MOST_NAMED])}{more}."
