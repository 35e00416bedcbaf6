"""The smallest change for the worse that a judge could have found in a series tonight.

In: its verdict, the history, the policies. Out: a relative change and in words where it comes from. Compile facts and
curves: what their policy allows. Pairs: from their interval. Histories: the judge itself is asked about nights that are
worse by the steps of `GRID`. docs/statistics.md says what is approximate about each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.history import Memory
from nightjar_ci.judges.history.history import judge_history
from nightjar_ci.judges.performance.sequential import COVERAGE_MISS
from nightjar_ci.judges.student_t import t_quantile

GRID = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)  # changes of one night
POWER = 0.9  # of pairs


def find_smallest_change(
    verdict: Verdict, series: Series | None, policies: Policies, memory: Memory, tests: int
) -> tuple[float, str] | None:
    """The smallest change that a judge could have found, and how it is known; None where nothing tells.

    Args:
        verdict: on the series.
        series: its history, tonight included.
        policies: by which the night was judged.
        memory: with which the night was judged.
        tests: how many p-values of the night are weighed together.
    """
    match verdict.judge:
        case "facts":
            return 0.0, "facts: any difference that no tolerance allows"
        case "convergence":
            return _of_curve(verdict)
        case "performance":
            return _of_pairs(verdict)
        case "history" if series is not None and verdict.status != "regressed":
            policy = policies.for_history(series.cell, series.measure)
            if policy is None:
                return None
            if verdict.policy.get("deterministic") and verdict.p is None:
                return policy.floor, "history: a counter, tonight"
            return _of_history(series, policy, memory, tests / policies.night.q)
        case _:
            return None


def _of_curve(verdict: Verdict) -> tuple[float, str] | None:
    """What the policy allows: of another cell, of the same seed, or of the end of the curve."""
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
    """From the width of the interval: what the last look would have found nine times in ten."""
    looks, alphas, floor = (verdict.policy.get(key) for key in ("looks", "alphas", "floor"))
    if verdict.interval is None or not isinstance(looks, list) or not isinstance(alphas, list) or verdict.n < 3:
        return None
    low, high = (math.log1p(end) for end in verdict.interval)
    number = max(0, bisect_left([int(str(look)) for look in looks], verdict.n))
    error = (high - low) / 2 / t_quantile(COVERAGE_MISS / 2 / len(looks), verdict.n - 1)
    alpha = float(str(alphas[min(number, len(alphas) - 1)]))
    size = (t_quantile(alpha, verdict.n - 1) + t_quantile(1 - POWER, verdict.n - 1)) * error
    return max(math.expm1(size), float(str(floor))), f"performance: {verdict.n} pairs"


def _of_history(series: Series, policy: HistoryPolicy, memory: Memory, weight: float) -> tuple[float, str] | None:
    """The first change on the grid that would not have been *ok*, as the only one of the night."""
    before = series.values[:-1][-policy.window :]
    if policy.scale != "log" or not np.isfinite(before).any():
        return None
    level = float(np.nanmedian(before))

    def is_found(change: float) -> bool:
        values = series.values.copy()
        factor = 1 + change
        values[-1] = level * factor if series.better == "lower" else level / factor
        verdict = judge_history(
            replace(series, values=values), policy, accepted=memory.accepted.get(series.name, ()), earlier=None
        )
        if verdict is None or verdict.status in ("ok", "improved"):
            return False
        return verdict.p is None or verdict.p * weight <= 1

    smallest = bisect_left(GRID, True, key=is_found)
    if smallest == len(GRID):
        return math.inf, f"history: not even x {1 + GRID[-1]:g} in one night"
    return GRID[smallest], "history: one night, without re-runs"
