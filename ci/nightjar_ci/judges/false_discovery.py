"""Control of false discoveries over all verdicts of a night.

In: the verdicts of all judges. Out: the same verdicts, each p adjusted for the number of series in the night, so that
many series raise no more false alarms than few; comparisons with a `--reference` are adjusted apart. A regression that
does not hold after the adjustment is no longer one. A verdict without a p (a fact, a NaN, a departure from the same
seed) is exact and stays.

Source: Benjamini and Hochberg, Controlling the false discovery rate (1995); Benjamini and Yekutieli (2001) for any
dependence. Not SciPy's: its statistics module takes longer to import than a night to judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from nightjar_ci.formats.policy import NightPolicy
from nightjar_ci.formats.verdict import Status, Verdict
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.finding import count


def adjust_for_night(verdicts: Sequence[Verdict], policy: NightPolicy) -> list[Verdict]:
    """The verdicts with their p adjusted; those that do not hold across all series are replaced."""
    weighed = list(verdicts)
    for is_asked in (False, True):  # two families: pairs with --reference end at an error rate of their own
        family = (one for one in enumerate(verdicts) if (one[1].judge == "performance") == is_asked)
        tested = {number: one.p for number, one in family if one.p is not None}
        p = np.clip(list(tested.values()), 0.0, 1.0)
        for number, adjusted in zip(tested, control_discoveries(p, policy.method) if tested else (), strict=True):
            weighed[number] = _weigh(verdicts[number], float(adjusted), len(tested), policy)
    return weighed


def control_discoveries(p: Array, method: Literal["bh", "by"] = "bh") -> Array:
    """The smallest rate of false discoveries at which each p would count.

    Args:
        p: shape (N,), from 0 to 1.
        method: `bh` for p-values that are independent or positively dependent, `by` for any.

    >>> control_discoveries(np.array([0.01, 0.5, 0.02])).tolist()
    [0.03, 0.5, 0.03]
    """
    count_all = len(p)
    ranks = np.arange(1, count_all + 1)
    order = np.argsort(p)
    scaled = p[order] * count_all / ranks
    if method == "by":
        scaled *= float((1 / ranks).sum())
    adjusted = np.empty(count_all)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return adjusted


def _weigh(verdict: Verdict, p_adjusted: float, tests: int, policy: NightPolicy) -> Verdict:
    weighed = verdict.model_copy(update={"p_adjusted": p_adjusted})
    becomes = _without_discovery(verdict)
    if p_adjusted <= policy.q or becomes == verdict.status:
        return weighed
    p_values = f"adjusted p {p_adjusted:.2g}, threshold {policy.q:g}"
    why = f"Not significant after correcting for {count(tests, 'test')} ({p_values})."
    watch = becomes == "ok" and verdict.status != "improved"
    explanation = f"{verdict.explanation} {why}"
    return weighed.model_copy(update={"status": becomes, "explanation": explanation, "watch": watch})


def _without_discovery(verdict: Verdict) -> Status:
    """The replacement of a verdict that the night's other series explain.

    Findings from history alone become *ok*; findings from pairs and *cannot tell* of other judges stay *cannot tell*.
    """
    if verdict.status == "improved" or (verdict.judge == "history" and "reference" not in verdict.policy):
        return "ok"
    if verdict.status == "regressed":
        return "cannot_tell"
    return verdict.status
