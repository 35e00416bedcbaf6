"""Steps without pairs: how often noise looks like one. `everyone` says how many are found.

In: seeded nights of 500 unchanged series of every noise model of `jumps`, at three ages. Out: false steps in 1,000 such
nights, as `judge_histories` has them; nights without a step by `find_step` are not played.
"""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from nightjar_ci.judges.history.last_nights import screen_last_nights
from nightjar_ci.judges.history.step import find_step
from tests.bench.gate.jumps import FLOOR, KINDS, OF_500, POLICY, count_by_age, count_red_of
from tests.bench.gate.noise import Array
from tests.bench.table import Row

SERIES = 40_000
AGES = {"young": (17, 20, 23), "grown": (28, 36, 44, 52, 60, 68), "old": (80, 100, 120)}  # nights of history
SEED = 20261126


def list_goals(quick: bool = False) -> list[str]:
    return [f"false steps, {age} histories, {kind}" for kind in KINDS for age in AGES]


def measure(quick: bool = False) -> list[Row]:
    series = SERIES // 10 if quick else SERIES
    with ProcessPoolExecutor(2) as pool:
        counted = list(pool.map(count_steps, KINDS, [series] * len(KINDS)))
    return [
        Row(
            name=f"false steps, {age} histories, {kind}",
            ours=1000 * steps[age] * OF_500 / (len(nights) * series),
            goal=1,
            unit="/1000 nights of 500",
        )
        for kind, steps in zip(KINDS, counted, strict=True)
        for age, nights in AGES.items()
    ]


def count_steps(kind: str, series: int) -> dict[str, int]:
    return count_by_age(kind, series, SEED, AGES, count_red)


def count_red(values: Array) -> int:
    """How many of the series that end with a step, each by itself, are called regressed in the night."""
    screened = screen_last_nights(values, POLICY.window, FLOOR, POLICY.min_nights)
    doubtful = np.flatnonzero(screened.p <= POLICY.trigger)  # no other series is looked at
    stepping = [int(place) for place in doubtful if find_step(values[place], FLOOR, POLICY.min_nights) is not None]
    return count_red_of(values, stepping)
