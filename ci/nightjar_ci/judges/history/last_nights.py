"""The last nights of a series against the nights before: do they stand out, or lie far beyond all of them, a jump?

In: the values of the current segment, with the sign chosen so that higher is worse. Out: a p-value. It is valid
whatever the noise looks like (outliers, several modes of a machine), as long as the nights of an unchanged series are
exchangeable. For nights beyond the whole reference, p falls with the distance. docs/statistics.md derives it. A
re-run is cheap; nights that stand out decide nothing, paired re-runs do. Ranks alone need many nights among many
series, however large the change is: the size of a jump, whose nights agree with each other, makes up for them. One
night is never a jump, so that a single slow run is not.

Source: the rank-sum test (see `rank_sum`) and the tail of the reference (see `noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.noise import rarity_beyond, robust_sd, tail_of
from nightjar_ci.judges.history.rank_sum import rank_sum_p

# How the error is shared among the last 1, 2, 3 and 5 nights: a large step shows in one night, a small one in five.
SHARES = {1: 0.4375, 2: 0.1875, 3: 0.1875, 5: 0.1875}
LONGEST = max(SHARES)
# Of a jump; chosen on other seeds than the rates in docs/statistics.md, false jumps against power after twelve nights.
JUMP_NIGHTS = (3, 4, 5, 6, 7, 8)  # possible numbers of nights; longer ones are lasting changes
REFERENCE = 180  # earlier nights that a jump must exceed, at most
NOISES = 5.0  # standard deviations of the reference that each night must lie above its median
AGREE = 0.25  # the largest range of the nights, as a share of their distance above the median
JUMP_P = 2e-6  # at most one false jump in 1,000 nights of 500 series


@dataclass(frozen=True, slots=True, kw_only=True)
class LastNights:
    """The last nights that stand out most.

    Attributes:
        nights: number of last nights; shape (...).
        p: probability of standing out as much by chance, all choices of `nights` together; shape (...).
    """

    nights: Array
    p: Array

    def of(self, row: int) -> LastNights:
        return LastNights(nights=self.nights[row], p=self.p[row])


def screen_last_nights(values: Array, window: int, floor: float = 0.0, least: int = 10) -> LastNights:
    """The surprise at the end of a series.

    Args:
        values: shape (..., N), finite, oldest first, higher is worse; more axes are several series at once.
        floor: the smallest change that counts, and the least scale of the tail.
        least: least number of nights in the reference; at least 6, and N > `least`.
    """
    count = values.shape[-1]
    choices = [nights for nights in SHARES if count - nights >= least]
    per_choice = []
    for nights in choices:
        recent = values[..., count - nights :]
        reference = values[..., max(0, count - nights - window) : count - nights]
        p = rank_sum_p(recent, reference) * rarity_beyond(recent.min(axis=-1), reference, floor) / SHARES[nights]
        size = np.median(recent, axis=-1) - np.median(reference, axis=-1)
        per_choice.append(np.where(size > floor, p, 1.0))
    stacked = np.stack(per_choice, axis=-1)
    chosen = stacked.argmin(axis=-1)
    return LastNights(nights=np.array(choices)[chosen], p=np.minimum(stacked.min(axis=-1), 1.0))


def find_smallest_night(values: Array, window: int, floor: float, p: float) -> float:
    """The smallest distance above the reference's median at which one night's p would be that small.

    Args:
        values: shape (N,); the last one is left out.
    """
    reference = values[:-1][-window:]
    highest, scale = tail_of(reference)
    rarer = 1 / ((len(reference) + 1) * SHARES[1] * p)  # than a new highest value
    beyond = max(float(scale), floor, 1e-9) * math.log(max(rarer, 1.0))
    return max(float(highest) + beyond - float(np.median(reference)), floor)


def find_jump(values: Array, least: float, floor: float, min_nights: int) -> LastNights:
    """The jump at the end of a series; 0 nights if there is none.

    Args:
        values: shape (..., N), finite, oldest first, higher is worse; more axes are several series at once.
        least: least distance of each night above the reference's median, even if that is quiet.
        floor: the least scale of the reference's tail.
    """
    count = values.shape[-1]
    best: Array = np.ones(values.shape[:-1])
    chosen: Array = np.zeros(values.shape[:-1])
    for nights in JUMP_NIGHTS:
        recent, reference = values[..., count - nights :], values[..., max(0, count - nights - REFERENCE) : -nights]
        if reference.shape[-1] < min_nights:
            break
        lowest = recent.min(axis=-1)
        beyond, width = lowest - np.median(reference, axis=-1), recent.max(axis=-1) - lowest
        if not (beyond >= least).any():
            continue  # as on nearly every night
        spread = robust_sd(reference)
        far = (beyond >= np.maximum(NOISES * spread, least)) & (width <= np.maximum(AGREE * beyond, NOISES * spread))
        # For independent nights the exponent is their number; neighbours are correlated, so it is 2.
        p = rank_sum_p(recent, reference) * rarity_beyond(lowest, reference, floor) ** 2 * len(JUMP_NIGHTS)
        better = far & (p <= JUMP_P) & (p < best)
        best, chosen = np.where(better, p, best), np.where(better, nights, chosen)
    return LastNights(nights=chosen, p=best)
