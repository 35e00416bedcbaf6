"""Screening of the last nights of a series, by ranks, against the nights before.

In: the values of the current segment, with the sign chosen so that higher is worse. Out: a p-value. It is valid
whatever the noise looks like (outliers, several modes of a machine), as long as the nights of an unchanged series are
exchangeable. For nights beyond the whole reference, p falls with the distance. docs/statistics.md derives it. A
re-run is cheap; the last nights decide nothing, paired re-runs do.

Source: the rank-sum test (see `rank_sum`) and the tail of the reference (see `noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.noise import rarity_beyond, tail_of
from nightjar_ci.judges.history.rank_sum import rank_sum_p

# How the error is shared among the last 1, 2, 3 and 5 nights: a large step shows in one night, a small one in five.
SHARES = {1: 0.4375, 2: 0.1875, 3: 0.1875, 5: 0.1875}
LONGEST = max(SHARES)


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
