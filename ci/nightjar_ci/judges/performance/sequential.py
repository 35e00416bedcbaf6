"""Group-sequential test of paired differences, with few looks.

In: log ratios of pairs in the order of measurement. Out: the first look that decides, with the robust mean, its
interval and its p-value. docs/statistics.md derives the error rates.

Source: Yuen and Dixon, The approximate behaviour and performance of the two-sample trimmed t (1973), here for one
sample: the trimmed mean with the winsorised variance; Lan and DeMets (1983) for spending alpha over looks, here by
Bonferroni's inequality, so that the sum of the alphas bounds the error however the looks are correlated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy, PerformancePolicy
from nightjar_ci.formats.verdict import Status
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.student_t import t_quantile, t_tail

TRIM = 0.1  # fraction cut from each end: tolerates one outlier in 12 pairs; 0.2 costs a fifth of the power there
COVERAGE_MISS = 0.05  # of the reported interval, all looks together


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A robust mean with its standard error and degrees of freedom."""

    mean: float
    error: float
    degrees: int

    def upper_tail(self, value: float) -> float:
        if self.error == 0:  # as of timers of few digits: half of chance is on this side, and half of that repeats
            return 1.0 if self.mean <= value else 0.25 ** (self.degrees + 1)
        return t_tail((self.mean - value) / self.error, self.degrees)

    def half_width(self, tail: float) -> float:
        return t_quantile(tail, self.degrees) * self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of the looks: `cannot_tell` if none decided. Numbers are log ratios; `p` is two-sided, for all looks
    together."""

    status: Status
    pairs: int
    mean: float
    low: float
    high: float
    upper: float
    p: float


def trimmed_location(values: Array) -> Location:
    """The trimmed mean of at least three values, with the standard error from the winsorised variance."""
    n = len(values)
    cut = int(TRIM * n)
    ordered = np.sort(values)
    kept = n - 2 * cut
    winsorised = np.clip(ordered, ordered[cut], ordered[n - 1 - cut])
    squares = float(((winsorised - winsorised.mean()) ** 2).sum())
    error = math.sqrt(squares / (kept * (kept - 1)))
    return Location(mean=float(ordered[cut : n - cut].mean()), error=error, degrees=kept - 1)


def decide(ratios: Sequence[float], policy: PerformancePolicy | HistoryPolicy) -> Decision | None:
    """The first look that decides, or the last look that the pairs reach.

    Args:
        ratios: log(candidate / reference) per pair, positive is worse; finite.
        policy: looks, alphas, floor; delta of a comparison, or doubts of a history.

    Returns: None if there are fewer pairs than the first look needs.
    """
    decision = None
    floor = math.log1p(policy.floor)
    for number, (look, alpha) in enumerate(zip(policy.looks, policy.alphas, strict=True)):
        if look > len(ratios):
            break
        location = trimmed_location(np.asarray(ratios[:look], dtype=np.float64))
        above = location.upper_tail(0.0)
        below = 1 - above if location.error else float(location.mean >= 0)
        if isinstance(policy, PerformancePolicy):
            upper = location.mean + location.half_width(policy.ok_alphas[number])
            enough = upper < math.log1p(policy.delta)
        else:
            upper = location.mean + location.half_width(COVERAGE_MISS / 2)
            enough = above > policy.doubts[number]
        status: Status = "cannot_tell"
        if above < alpha and location.mean > floor:
            status = "regressed"
        elif below < alpha and location.mean < -floor:
            status = "improved"
        elif enough:
            status = "ok"
        half = location.half_width(COVERAGE_MISS / 2 / len(policy.looks))
        decision = Decision(
            status=status,
            pairs=look,
            mean=location.mean,
            low=location.mean - half,
            high=location.mean + half,
            upper=upper,
            p=min(1.0, 2 * len(policy.looks) * min(above, below)),
        )
        if status != "cannot_tell":
            break
    return decision
