"""A jump: the last few nights lie far beyond all earlier ones, and agree with each other.

In: the values of the current segment, turned so that higher is worse. Out: its number of nights, and how probable that
is. Ranks alone need many nights among many series, however large the change is; the size of a jump makes up for them.
One night is never a jump, so that a single slow run is not: docs/statistics.md gives the rates on every kind of noise.
"""

from __future__ import annotations

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.history.last_nights import LastNights
from nightjar_ci.judges.history.noise import rarity_beyond, robust_sd
from nightjar_ci.judges.history.rank_sum import rank_sum_p

# Chosen on other seeds than the rates in docs/statistics.md, false jumps against power after twelve nights.
NIGHTS = (3, 4, 5, 6, 7, 8)  # possible numbers of nights; longer ones are lasting changes
REFERENCE = 180  # earlier nights that a jump must exceed, at most
NOISES = 5.0  # standard deviations of the reference that each night must lie above its median
AGREE = 0.25  # the largest range of the nights, as a share of their distance above the median
P = 2e-6  # at most one false jump in 1,000 nights of 500 series


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
    for nights in NIGHTS:
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
        p = rank_sum_p(recent, reference) * rarity_beyond(lowest, reference, floor) ** 2 * len(NIGHTS)
        better = far & (p <= P) & (p < best)
        best, chosen = np.where(better, p, best), np.where(better, nights, chosen)
    return LastNights(nights=chosen, p=best)
