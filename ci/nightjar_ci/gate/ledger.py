"""The ledger of a night: which series are due, and tonight's state of each.

In: tonight's results, the series of recent nights, accepted ends, policies and baselines. Out: an entry for each due
series. A series is due if more than half of the recent nights had it, counted from its accepted end if there is one,
or if its rhythm has a value tonight; if the latest night before lacked it and it has not come back; or if a baseline or
a policy names it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal

from nightjar_ci.baselines.accepted import Entry, read_accepted
from nightjar_ci.baselines.baseline import read_convergence, read_facts
from nightjar_ci.formats.ledger import Due
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.judges.finding import count
from nightjar_ci.store.folder import make_stored
from nightjar_ci.store.keys import SeriesKey
from nightjar_ci.store.measures import Measure
from nightjar_ci.store.recent import Recent

Source = Literal["policy", "baseline"]
LIKE = math.log(1.5)  # a new series within this factor of the level of a missing one may be the same under a new name
_GLOB = set("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """The results of a night's jobs.

    Attributes:
        jobs: for each cell the ids of the jobs that completed.
        not_run: cells whose jobs failed or have not run, which the night itself reports.
        left_out: cells that the night was told to leave out.
        measures: for each cell and name the measures of each completed job, by job.
        programs: the compiled programs of each cell.
        facts_keys: the key of each cell's compile facts.
    """

    jobs: Mapping[str, Set[str]]
    not_run: Collection[str]
    left_out: Collection[str]
    measures: Mapping[tuple[str, str], Sequence[tuple[str, Measure]]]
    programs: Mapping[str, Collection[str]] = field(default_factory=dict)
    facts_keys: Mapping[str, Collection[str]] = field(default_factory=dict)


def read_tonight(results: NightResults) -> Tonight:
    folder, night = results.folder, results.night
    jobs: dict[str, set[str]] = defaultdict(set)
    failed: set[str] = set()
    measures: dict[tuple[str, str], list[tuple[str, Measure]]] = defaultdict(list)
    programs: dict[str, set[str]] = defaultdict(set)
    keys: dict[str, set[str]] = defaultdict(set)
    for outcome, record in results:
        if outcome.completed:
            jobs[outcome.cell].add(outcome.job)
        else:
            failed.add(outcome.cell)
        for measure in make_stored(folder, outcome, record, results.profiles.get(outcome.job)).measures:
            measures[outcome.cell, measure.name].append((outcome.job, measure))
        if record is not None and outcome.completed:
            programs[outcome.cell] |= {facts.program for facts in record.facts}
            keys[outcome.cell].add(record.environment.facts_key)
    not_run = {*failed, *night.not_run, *(job.rpartition("-s")[0] for job in night.not_run)}
    return Tonight(
        jobs=dict(jobs),
        not_run=not_run - jobs.keys(),
        left_out=night.left_out,
        measures=measures,
        programs=programs,
        facts_keys=keys,
    )


def find_due(
    results: NightResults, recent: Recent, policies: Policies, baselines: Path, series: Sequence[Series]
) -> list[Due]:
    """The series that are due, by name.

    Args:
        policies: one that names a cell and a measure without a wildcard makes it due if that cell ran.
    """
    tonight, accepted = read_tonight(results), read_accepted(baselines)
    entries = {(due.series, due.kind, due.unit, due.better): due for due in _due_by_nights(recent, accepted)}
    for source, name, kind in (*_named_by_policies(policies, tonight), *_named_by_baselines(tonight, baselines)):
        if _ended_from(accepted.get(name, ())):
            continue
        blank = Due(series=name, kind=kind, unit="", better="", had=0, of=0, measured="yes")
        for key in [key for key in entries if key[0] == name] or [(name, kind, "", "")]:
            entry = entries.get(key, blank)
            by = tuple(dict.fromkeys((*entry.named_by, source)))
            entries[key] = entry.model_copy(update={"named_by": by})
    histories = {(history.name, history.unit): history for history in series}
    new = list(_find_new(tonight, recent))
    complete = []
    for _, entry in sorted(entries.items()):
        if entry.cell not in tonight.left_out:
            since = _zero_since(entry.series, recent)
            changes = [change for change in accepted.get(entry.series, ()) if not change.false_alarm]
            history = _values_between(histories.get((entry.series, entry.unit)), changes, since, recent)
            update = _look_up(entry, tonight, recent, history, new)
            if since and update.get("measured") == "zero":
                update["since"] = since
            complete.append(entry.model_copy(update=update))
    return complete


def _due_by_nights(recent: Recent, accepted: Mapping[str, Sequence[Entry]]) -> Iterator[Due]:
    """The series of more than half of the recent nights, and those absent last night and not back."""
    absent: dict[SeriesKey, tuple[str, str]] = {}
    for name, (night, verdict) in recent.absent.items():
        kind, unit, better, since = (str(verdict.policy.get(part, "")) for part in ("kind", "unit", "better", "since"))
        if better or kind == "facts":  # a series named only by a policy or baseline is due while they name it
            absent[SeriesKey(*parse_series_name(name), kind, unit, better)] = night, since
    gated: dict[str, set[str]] = defaultdict(set)  # nights without a gate have no programs
    for key, had in recent.had.items():
        if key.kind == "facts":
            gated[key.cell] |= had.keys()
    for key in dict.fromkeys((*recent.had, *absent)):
        if key.kind == "facts" and key.name == "compiler":
            continue  # of nights of older releases, which judged their compiler so
        had = recent.had.get(key, {})
        places = sorted(map(recent.place, had))
        last = max(places, default=-1.0)
        end, ended = _ended_from(accepted.get(f"{key.cell}/{key.name}", ())), -1.0
        if end:
            ended = recent.place(end)
        nights = [night for night in recent.nights.get(key.cell, ()) if recent.place(night) >= ended]
        if key.kind == "facts":
            nights = [night for night in nights if night in gated[key.cell]]
        night, since = absent.get(key, ("", ""))
        still_absent = night != "" and recent.place(night) > last >= ended
        count_had = sum(night in had for night in nights)
        usual, rest = 2 * count_had > len(nights), _find_rest(places)
        if rest:
            usual = len(recent.order) - last > rest and last >= ended
        if still_absent or usual:
            yield Due(
                series=f"{key.cell}/{key.name}",
                kind=key.kind,
                unit=key.unit,
                better=key.better,
                had=count_had,
                of=len(nights),
                since=since if still_absent else None,
                measured="yes",
            )


def _find_rest(places: Sequence[float]) -> float:
    """The most nights in a row that a series' rhythm leaves out; 0 if it has none. One gap may be longer.

    Two gaps of one length are a rhythm, and so are any three: two suites that take turns without one.

    >>> _find_rest([0.0, 2.0, 4.0, 7.0, 9.0, 11.0, 14.0]), _find_rest([0.0, 1.0, 2.0, 9.0]), _find_rest([0.0, 4.0, 6.0])
    (2.0, 0.0, 0.0)
    >>> _find_rest([0.0, 4.0, 5.0, 7.0, 10.0])
    2.0
    """
    gaps = sorted(later - earlier - 1 for earlier, later in pairwise(places))
    if len(gaps) < 2 or (gaps.count(gaps[-2]) < 2 and sum(gap > 0 for gap in gaps) < 3):
        return 0.0
    return gaps[-2]


def _ended_from(entries: Sequence[Entry]) -> str:
    return max((entry.night for entry in entries if entry.ended), default="")


def _named_by_policies(policies: Policies, tonight: Tonight) -> Iterator[tuple[Source, str, str]]:
    """The series whose cell and measure a policy spells out, of cells that ran."""
    for kind, entries, field_name in (("", policies.history, "measure"), ("curve", policies.convergence, "curve")):
        for entry in entries:
            name = getattr(entry, field_name)
            spelt_out = {"jobs", field_name} <= entry.model_fields_set and not _GLOB & set(entry.jobs + name)
            judged = policies.for_curve(entry.jobs, name) or policies.for_history(entry.jobs, name)
            if spelt_out and judged is not None and entry.jobs in tonight.jobs:
                yield "policy", f"{entry.jobs}/{name}", kind


def _named_by_baselines(tonight: Tonight, baselines: Path) -> Iterator[tuple[Source, str, str]]:
    for cell in sorted(tonight.facts_keys):
        if (curves := read_convergence(baselines, cell)) is not None:
            yield from (("baseline", f"{cell}/{curve.name}", "curve") for curve in curves.curves)
        for key in sorted(tonight.facts_keys[cell]):
            if (facts := read_facts(baselines, cell, key)) is not None:
                yield from (("baseline", f"{cell}/{one.program}", "facts") for one in facts.facts)


def _zero_since(name: str, recent: Recent) -> str:
    """The first night in which a series was zero, if its latest presence verdict has one; else empty."""
    _, verdict = recent.absent.get(name, ("", None))
    if verdict is None or verdict.policy["reason"] != "zero":
        return ""
    return str(verdict.policy["since"])


def _values_between(series: Series | None, entries: Sequence[Entry], until: str, recent: Recent) -> list[float]:
    """The finite values before tonight, from the latest accepted change until the series became zero."""
    if series is None:
        return []
    first = max((entry.night for entry in entries), default="")
    values = zip(series.nights[:-1], series.values[:-1].tolist(), strict=True)
    kept = [(night, value) for night, value in values if night >= first and math.isfinite(value)]
    if until:
        end = recent.place(until)
        kept = [(night, value) for night, value in kept if recent.place(night) < end]
    return [value for _, value in kept]


def _find_new(tonight: Tonight, recent: Recent) -> Iterator[tuple[SeriesKey, float]]:
    before = {(key.cell, key.name) for key in recent.had}
    for (cell, name), measures in tonight.measures.items():
        values = [measure.value for _, measure in measures if measure.value is not None]
        if (cell, name) not in before and values:
            first = measures[0][1]
            yield SeriesKey(cell, name, first.kind, first.unit, first.better), median(values)
    for cell, programs in tonight.programs.items():
        yield from ((SeriesKey(cell, name, "facts", "", ""), 0.0) for name in programs if (cell, name) not in before)


def _look_up(
    entry: Due, tonight: Tonight, recent: Recent, history: Sequence[float], new: Sequence[tuple[SeriesKey, float]]
) -> dict[str, object]:
    """Tonight's state of a series: `measured`, and its fault in words."""
    if entry.cell in tonight.not_run:
        return {"measured": "not_run", "not_judged": f"no job of {entry.cell} completed"}
    measures: Sequence[tuple[str, Measure]] = ()
    why = f"{entry.cell} left no {entry.name}"
    if entry.kind == "facts":
        why = f"{entry.cell} left no program {entry.name}"
        if entry.name in tonight.programs.get(entry.cell, ()):
            return {}
    else:
        measures = tonight.measures.get((entry.cell, entry.name), ())
    if not measures:
        if entry.cell not in tonight.jobs:
            why = f"the night has no job of {entry.cell}"
        return {"measured": "missing", "not_judged": why, "renamed_to": _find_new_name(entry, recent, new)}
    measures = [
        pair for pair in measures if pair[1].kind == entry.kind
    ] or measures  # a curve and a sample share a name
    lacking = sorted(tonight.jobs.get(entry.cell, set()) - {job for job, _ in measures})
    if lacking and (entry.had or entry.since):  # nights that had it had it from every job
        return {"measured": "missing", "not_judged": f"{', '.join(lacking[:3])} left no {entry.name}"}
    return _find_wrong(entry, measures, history)


def _find_wrong(entry: Due, measures: Sequence[tuple[str, Measure]], history: Sequence[float]) -> dict[str, object]:
    spelt = {(measure.kind, measure.unit, measure.better) for _, measure in measures}
    if entry.better and spelt != {(entry.kind, entry.unit, entry.better)}:
        units = sorted({unit for _, unit, _ in spelt})
        named = " and in ".join(unit or "no unit" for unit in units)
        why = f"measured in {named} instead of {entry.unit or 'no unit'}"
        if units == [entry.unit]:
            kinds = ", ".join(f"{kind} where {better} is better" for kind, _, better in sorted(spelt))
            why = f"now a {kinds}; it was a {entry.kind} where {entry.better} is better"
        return {"measured": "unit_changed", "not_judged": why}
    broken = [job for job, measure in measures if measure.value is None]
    if broken:
        return {"measured": "not_finite", "not_judged": f"a value of {', '.join(broken[:3])} is NaN or infinite"}
    value = median(measure.value for _, measure in measures if measure.value is not None)
    if history and value == 0 and all(history):
        before = "not 0"
    elif history and value < 0 < min(history):
        before = "above 0"
    else:
        return {}
    why = f"{value:g} tonight, and {before} in {count(len(history), 'earlier night')}"
    return {"measured": "zero", "not_judged": why}


def _find_new_name(entry: Due, recent: Recent, new: Sequence[tuple[SeriesKey, float]]) -> str | None:
    """The new series most like a missing one: in its cell, or with its name in a new cell; near its level."""
    had = recent.had.get(SeriesKey(entry.cell, entry.name, entry.kind, entry.unit, entry.better), {})
    level = math.nan
    if had:
        level = had[max(had, key=recent.place)]
    like = []
    for key, value in new:
        same_place = key.cell == entry.cell or (key.name == entry.name and key.cell not in recent.nights)
        if same_place and (key.kind, key.unit, key.better) == (entry.kind, entry.unit, entry.better):
            like.append((_distance(value, level), f"{key.cell}/{key.name}"))
    distance, name = min(like, default=(math.inf, ""))
    return name if distance <= LIKE else None


def _distance(value: float, level: float) -> float:
    """The distance of two levels, as the logarithm of their ratio; infinite if undefined."""
    if value == level:
        return 0.0
    if value * level > 0:
        return abs(math.log(value / level))
    return math.inf
