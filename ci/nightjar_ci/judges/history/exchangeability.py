"""The exchange test: whether the last nights are higher than a random choice of equally many.

In: values, the recent ones last. Out: the probability that a random choice of as many of them has a sum as high. It
holds for any noise whose nights are exchangeable: outliers, heavy tails, modes that come at random. Ranks forget how
far a night lies above the others; this test uses it, and so needs fewer nights.

The sum is of scores that outliers cannot dominate: distances from the median in standard deviations, cut at three, or
zero beyond five. Both depend on the values only, not on which of them are recent, so that each is exact.

Source: Robinson, Saddlepoint approximations for permutation tests and confidence intervals (1982); Skovgaard,
Saddlepoint expansions for conditional distributions (1987), for the tail.
"""

from __future__ import annotations

import math

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.noise import robust_sd

CUT = 3.0  # standard deviations at which a night's score is cut
WILD = 5.0  # and beyond which, in the second score, it is zero
MOST_STEPS = 60  # of Newton's method; it takes about ten
LONGEST = 2.0  # step of it


def exchange_p(values: Array, recent: int) -> float:
    """One-sided p of the height of the last nights, from both scores.

    Args:
        values: shape (N,), finite; the last `recent` of them are tested.
        recent: 1 to N - 1.
    """
    median, sd = float(np.median(values)), float(robust_sd(values))
    if sd == 0:
        return 1.0
    away = (values - median) / sd
    cut, calm = np.clip(away, -CUT, CUT), np.where(np.abs(away) > WILD, 0.0, np.clip(away, -CUT, CUT))
    if np.array_equal(cut, calm):
        return sum_p(cut, recent)
    return min(1.0, 2 * min(sum_p(cut, recent), sum_p(calm, recent)))


def sum_p(scores: Array, recent: int) -> float:
    """The probability that a random choice of `recent` scores has a sum as high as the last ones.

    At least one in the number of choices; 1 if the sum is below the mean. The approximation errs by a few percent
    of p at 0.001.
    """
    count = len(scores)
    centred = scores - scores.mean()
    total, share = float(centred[-recent:].sum()), recent / count
    least = math.exp(math.lgamma(recent + 1) + math.lgamma(count - recent + 1) - math.lgamma(count + 1))
    if total <= 0:
        return 1.0
    if total >= float(np.sort(centred)[-recent:].sum()) - 1e-9:
        return least * max(1, _count_highest(centred, recent))
    tilt, base = total / (recent * (1 - share) * float((centred**2).mean())), 0.0
    tilt = min(tilt, CUT)
    for _ in range(MOST_STEPS):
        chosen = _chosen(base + tilt * centred, share)
        inner = chosen * (1 - chosen)
        off = float(chosen.sum()) - recent, float(chosen @ centred) - total
        curve = float(inner.sum()), float(inner @ centred), float(inner @ centred**2)
        area = max(curve[0] * curve[2] - curve[1] ** 2, 1e-300)
        moves = (curve[1] * off[1] - curve[2] * off[0]) / area, (curve[1] * off[0] - curve[0] * off[1]) / area
        largest = max(abs(moves[0]), abs(moves[1]))
        shortened = min(1.0, LONGEST / max(largest, 1e-12))
        base, tilt = base + shortened * moves[0], tilt + shortened * moves[1]
        if largest < 1e-9:
            break
    else:
        return 1.0  # too near to the highest sum for the approximation: not detected, which is the safe side
    exponents = base + tilt * centred
    deviance = 2 * (base * recent + tilt * total - float(np.log1p(share * np.expm1(exponents)).sum()))
    root = math.sqrt(max(deviance, 1e-12))
    if root < 0.1:
        return 0.5
    inner = _chosen(exponents, share) * (1 - _chosen(exponents, share))
    area = float(inner.sum()) * float(inner @ centred**2) - float(inner @ centred) ** 2
    height = tilt * math.sqrt(area / (count * share * (1 - share)))
    density = math.exp(-deviance / 2) / math.sqrt(2 * math.pi)
    p = 0.5 * math.erfc(root / math.sqrt(2)) + density * (1 / height - 1 / root)
    return min(1.0, max(p, least))


def _chosen(exponents: Array, share: float) -> Array:
    """The probability of each score to be chosen, tilted."""
    chosen: Array = 1 / (1 + (1 - share) / share * np.exp(-np.clip(exponents, -500, 500)))
    return chosen


def _count_highest(centred: Array, recent: int) -> int:
    """The number of choices with the highest sum: more than one if scores are equal."""
    ordered = np.sort(centred)[::-1]
    edge = ordered[recent - 1]
    equal, above = int((np.abs(centred - edge) < 1e-12).sum()), int((centred > edge + 1e-12).sum())
    return math.comb(equal, recent - above)
