"""Jumps without pairs: how often noise looks like one, and how many large steps are found on their third night.

In: seeded series of every noise model, and of heavy tails, at three ages. Out: false jumps in 1,000 nights of 500
series, and the share of steps that are found. The code under test is `find_jump`; its numbers were chosen on other
seeds.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.judges.history.jump import find_jump
from tests.bench.gate.noise import NOISES, Array, draw_nights
from tests.bench.table import Row

POLICY = HistoryPolicy()
LEAST, FLOOR = float(np.log1p(POLICY.jump)), float(np.log1p(POLICY.floor))
SERIES, OF_500 = 200_000, 500
AGES = {"young": range(15, 25), "grown": range(25, 70), "old": range(70, 131, 3)}  # nights of history, tonight included
HEAVY = "heavy tails"
STEPS = ((3.0, 0.01), (3.0, 0.03), (1.3, 0.01), (1.3, 0.03), (1.1, 0.01))
FOUND = "found on its third night"
HISTORIES = (12, 20, 40)  # nights
SEED = 20261125


def is_loud(size: float, sd: float) -> bool:
    """Whether a step stands out of the noise by so much that it has a goal."""
    return bool(np.log(size) >= 10 * sd)


def list_goals(quick: bool = False) -> list[str]:
    """The names of this part's goals."""
    false = [f"false jumps, {age} histories, {kind}" for kind in (*NOISES, HEAVY) for age in AGES]
    loud = [(size, sd) for size, sd in STEPS if is_loud(size, sd)]
    return false + [
        f"x{size:g} at noise {sd:.0%} after {nights} nights, {FOUND}" for size, sd in loud for nights in HISTORIES
    ]


def measure(quick: bool = False) -> list[Row]:
    """Rows of false jumps for each noise model, and of steps found."""
    series = SERIES // 10 if quick else SERIES
    kinds = (*NOISES, HEAVY)
    with ProcessPoolExecutor(2) as pool:
        counted = list(pool.map(count_jumps, kinds, [series] * len(kinds)))
    rates = {
        (kind, age): 1000 * jumps[age] * OF_500 / (len(nights) * series)
        for kind, jumps in zip(kinds, counted, strict=True)
        for age, nights in AGES.items()
    }
    unit = "/1000 nights of 500"
    rows = [
        Row(name=f"false jumps, {age} histories, {kind}", ours=rate, goal=1, unit=unit)
        for (kind, age), rate in rates.items()
    ]
    for size, sd in STEPS:
        for history in HISTORIES:
            name = f"x{size:g} at noise {sd:.0%} after {history} nights, {FOUND}"
            found = 100 * find_share(size, sd, history, series // 20)
            goal = 95.0 if is_loud(size, sd) else None
            rows.append(Row(name=name, ours=found, goal=goal, better="higher", unit="%"))
    return rows


def count_jumps(kind: str, series: int) -> dict[str, int]:
    """Nights on which unchanged series jump, by age."""
    rng = np.random.default_rng([SEED, [*NOISES, HEAVY].index(kind)])
    jumps = dict.fromkeys(AGES, 0)
    for _ in range(10):
        values = draw(kind, series // 10, AGES["old"][-1], rng)
        for age, nights in AGES.items():
            jumps[age] += sum(int(jumps_now(values[:, :count]).sum()) for count in nights)
    return jumps


def draw(kind: str, series: int, nights: int, rng: np.random.Generator) -> Array:
    """Log values of unchanged series."""
    if kind == HEAVY:
        return np.asarray(0.01 * rng.standard_t(2, (series, nights)), dtype=np.float64)
    return draw_nights(kind, series, nights, rng)


def jumps_now(values: Array) -> Array:
    """Whether each series jumps on its last night."""
    jumps = np.zeros(len(values), dtype=bool)
    high = values[:, -3:].min(axis=1) - np.median(values, axis=1) > 0.8 * LEAST  # no other series can
    if high.any():
        jumps[high] = find_jump(values[high], LEAST, FLOOR, POLICY.min_nights).nights > 0
    return jumps


def find_share(size: float, sd: float, history: int, series: int) -> float:
    """The share of steps that are found on their third night."""
    values = np.random.default_rng([SEED, history]).normal(0.0, sd, (series, history + 3))
    values[:, history:] += np.log(size)
    return float((find_jump(values, LEAST, FLOOR, POLICY.min_nights).nights > 0).mean())
