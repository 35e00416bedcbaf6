"""The smallest change for the worse that a judge could have found in a series tonight.

In: a verdict, the history, the policies. Out: a relative change, and its origin in words. Compile facts and curves: the
limit in their policy. Pairs: from their interval. Histories: the distance at which the last night alone is suspicious.
docs/statistics.md says what is approximate about each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.last_nights import find_smallest_night
from nightjar_ci.judges.history.screening import ScreenedSeries
from nightjar_ci.judges.performance.sequential import COVERAGE_MISS
from nightjar_ci.judges.student_t import t_quantile

POWER = 0.9  # of pairs


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
