"""Verdicts on due series that are absent, and the judges of the rest, with the smallest change that they could find.

In: the entries of the ledger and the verdicts of a night. Out: a verdict for each due series that no judge could judge
(*cannot tell*: it may have ended, or only its measuring), and the ledger with its judges. The smallest change is the
limit in the policy of compile facts and curves, that of the interval of pairs, and of histories the distance at which
the last night alone is suspicious. docs/statistics.md says what is approximate about each.
"""

from __future__ import annotations

import math
import shlex
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from nightjar_ci.formats.ledger import Due
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.last_nights import find_smallest_night
from nightjar_ci.judges.history.screening import ScreenedSeries
from nightjar_ci.judges.performance.sequential import COVERAGE_MISS
from nightjar_ci.judges.student_t import t_quantile

POWER = 0.9  # of pairs
_HEAD = {
    "missing": "missing",
    "not_finite": "not a finite number",
    "unit_changed": "not comparable with earlier nights",
    "zero": "not usable",
}


def judge_presence(due: Sequence[Due], verdicts: Sequence[Verdict], night: str) -> Iterator[Verdict]:
    """A verdict for each series that is due and was not judged, unless another judge already reports a problem."""
    reported = {  # pairs and histories omit absent series without a note
        verdict.series
        for verdict in verdicts
        if verdict.judge in ("convergence", "facts", "tests") and verdict.status in ("regressed", "cannot_tell")
    }
    counted = {verdict.series for verdict in verdicts if verdict.judge == "tests"}  # they explain why no test passes
    for entry in due:
        if entry.measured in ("yes", "not_run") or entry.series in reported:
            continue
        if entry.measured == "zero" and entry.series in counted:
            continue
        yield Verdict(
            series=entry.series,
            judge="presence",
            status="cannot_tell",
            n=entry.of,
            policy={
                "reason": entry.measured,
                "since": entry.since or night,
                **{part: getattr(entry, part) for part in ("kind", "unit", "better", "had", "of")},
            },
            runs=(),
            explanation=_explain(entry),
            details=(_advise(entry, night),),
        )


def _explain(entry: Due) -> str:
    name = entry.name
    text = f"{name} is {_HEAD[entry.measured]}: {entry.not_judged}."
    if entry.since:
        text += f" It is so since night {entry.since}."
    elif entry.of:
        nights = "The night before"
        if entry.of > 1:
            nights = f"{entry.had} of the last {entry.of} nights"
        text += f" {nights} had it."
    if entry.named_by:
        text += f" A {' and a '.join(entry.named_by)} names it."
    if entry.renamed_to:
        text += f" {entry.renamed_to} is new, in the same unit and near its level: perhaps its new name."
    return text


def _advise(entry: Due, night: str) -> str:
    command = ["nightjar-ci", "accept", entry.series, "--night", night, "--reason", "WHY"]
    if entry.measured == "zero":
        return f"if that is wanted: `{shlex.join(command)}`"
    if entry.renamed_to:
        renamed = shlex.join([*command[:3], "--renamed-to", entry.renamed_to, *command[3:]])
        return f"if it has another name now: `{renamed}`"
    return f"if it has ended: `{shlex.join([*command[:3], '--ended', *command[3:]])}`"


def add_judges(
    due: Sequence[Due], verdicts: Sequence[Verdict], policies: Policies, screened: Mapping[str, ScreenedSeries]
) -> tuple[Due, ...]:
    """The entries with the judges of each, or why there are none, and its smallest detectable change."""
    judged: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.judge != "presence":
            judged[verdict.series].append(verdict)
    tests = sum(verdict.p is not None for verdict in verdicts)
    entries = []
    for entry in due:
        by = judged.get(entry.series, [])
        update: dict[str, object] = {"judges": tuple(verdict.judge for verdict in by)}
        if entry.measured == "yes":
            smallest = [find_smallest_change(verdict, policies, screened, tests / policies.night.q) for verdict in by]
            if any(smallest):
                update["smallest_change"], update["how"] = min(filter(None, smallest))
        if not by and entry.not_judged is None:
            update["not_judged"] = "no policy judges it"
            if entry.kind != "facts" and policies.for_history(entry.cell, entry.name) is not None:
                update["not_judged"] = "too few nights in this environment"
        entries.append(entry.model_copy(update=update))
    return tuple(entries)


def find_smallest_change(
    verdict: Verdict, policies: Policies, histories: Mapping[str, ScreenedSeries], weight: float
) -> tuple[float, str] | None:
    """The smallest change that a judge could have found, and its origin; None if unknown.

    Args:
        weight: the factor of a p before it is compared with 1.
    """
    match verdict.judge:
        case "facts":
            return 0.0, "facts: any difference that no tolerance allows"
        case "convergence":
            return _of_curve(verdict)
        case "performance":
            return _of_pairs(verdict)
        case "history" if verdict.status != "regressed":
            policy = policies.for_history(*parse_series_name(verdict.series))
            if policy is not None and verdict.policy.get("deterministic") and verdict.p is None:
                return policy.floor, "history: a counter, tonight"
            return _of_history(histories[verdict.series], weight) if verdict.series in histories else None
        case _:
            return None


def _of_curve(verdict: Verdict) -> tuple[float, str] | None:
    """The policy's limit: for another cell, the same seed, or the end of the curve."""
    if verdict.status == "cannot_tell":
        return None
    for key, where in (("rtol", "equality"), ("tested_rtol", "the same seed"), ("paired_rtol", "the same seed")):
        if isinstance(allowed := verdict.policy.get(key), float):
            return allowed, f"convergence: {where}"
    key, where = "margin", "the end of the curve"
    if verdict.p is None:
        key, where = "early_rtol", "the same seed"
    allowed = verdict.policy.get(key)
    if not isinstance(allowed, float):
        return None
    return allowed, f"convergence: {where}"


def _of_pairs(verdict: Verdict) -> tuple[float, str] | None:
    """The change that the last look would find nine times in ten, from the width of the interval."""
    looks, alphas, floor = (verdict.policy.get(key) for key in ("looks", "alphas", "floor"))
    if verdict.interval is None or not isinstance(looks, list) or not isinstance(alphas, list) or verdict.n < 3:
        return None
    low, high = (math.log1p(end) for end in verdict.interval)
    number = max(0, bisect_left([int(str(look)) for look in looks], verdict.n))
    error = (high - low) / 2 / t_quantile(COVERAGE_MISS / 2 / len(looks), verdict.n - 1)
    alpha = float(str(alphas[min(number, len(alphas) - 1)]))
    size = (t_quantile(alpha, verdict.n - 1) + t_quantile(1 - POWER, verdict.n - 1)) * error
    return max(math.expm1(size), float(str(floor))), f"performance: {verdict.n} pairs"


def _of_history(series: ScreenedSeries, weight: float) -> tuple[float, str] | None:
    """The smallest change of one night that would not be *ok* if it were the night's only one."""
    if series.segment.size is not None or series.screening.moved:
        return None
    p = min(series.policy.trigger, 1 / weight)
    size = find_smallest_night(series.level, series.policy.window, series.segment.floor, p)
    return math.expm1(size), "history: one night, without re-runs"
