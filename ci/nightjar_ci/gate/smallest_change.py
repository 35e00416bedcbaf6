"""The smallest change for the worse that a judge could have found in a series tonight.

In: a verdict, the history, the policies. Out: a relative change, and its origin in words. Compile facts and curves: the
limit in their policy. Pairs: from their interval. Histories: the judge itself judges nights that are worse by the steps
of `GRID`. docs/statistics.md says what is approximate about each.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping

import numpy as np

from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.screening import Ending, ScreenedSeries, look_at_endings
from nightjar_ci.judges.performance.sequential import COVERAGE_MISS
from nightjar_ci.judges.student_t import t_quantile

TOGETHER = 250  # histories judged at once, each with all changes
GRID = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)  # changes in one night
POWER = 0.9  # of pairs


def find_smallest_change(
    verdict: Verdict, policies: Policies, of_histories: Mapping[str, tuple[float, str]]
) -> tuple[float, str] | None:
    """The smallest change that a judge could have found, and its origin; None if unknown.

    Args:
        policies: by which the night was judged.
        of_histories: result of `find_smallest_in_histories`, by name.
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
            return of_histories.get(verdict.series)
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


def find_smallest_in_histories(screened: Mapping[str, ScreenedSeries], weight: float) -> dict[str, tuple[float, str]]:
    """The first change of `GRID` that each history would not call *ok* if it were the night's only one.

    Args:
        weight: the factor of a p before it is compared with 1.
    """
    histories = {name: one for name, one in screened.items() if one.segment.size is None and not one.screening.moved}
    smallest = {}
    names = list(histories)
    for start in range(0, len(names), TOGETHER):
        together = names[start : start + TOGETHER]
        levels = {
            row * len(GRID) + step: (values, histories[name].segment)
            for row, name in enumerate(together)
            for step, values in enumerate(_with_last(histories[name]))
        }
        endings = look_at_endings(levels)
        for row, name in enumerate(together):
            ends = (endings[row * len(GRID) + step] for step in range(len(GRID)))
            first = next((step for step, end in enumerate(ends) if _is_found(histories[name], end, weight)), None)
            smallest[name] = (math.inf, f"history: not even x {1 + GRID[-1]:g} in one night")
            if first is not None:
                smallest[name] = (GRID[first], "history: one night, without re-runs")
    return smallest


def _with_last(series: ScreenedSeries) -> Iterator[Array]:
    """The current level, with tonight at its median and at its median worsened by each change of `GRID`."""
    median = float(np.median(series.level[:-1][-series.policy.window :]))
    for change in GRID:
        values = series.level.copy()
        values[-1] = median + math.log1p(change)
        yield values


def _is_found(series: ScreenedSeries, ending: Ending, weight: float) -> bool:
    """Whether such an end would not be *ok*; lasting changes do not depend on tonight's value."""
    if ending.jump_nights:
        return ending.jump_p * weight <= 1
    change = series.screening.change
    if change is not None:
        return change.shift > 0 and series.change_p * weight <= 1
    return ending.p <= series.policy.trigger and ending.p * weight <= 1
