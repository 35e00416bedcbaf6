"""Jumps without pairs: how often noise looks like one, and how many large steps are found on their third night.

In: seeded nights of 500 series of every noise model, and of three more, at three ages. Out: false jumps in 1,000 such
nights, and the share of steps found, as `judge_histories` has them; without one of `find_jump` a night is not played.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.gate.history import Memory, judge_histories
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.history.last_nights import find_jump
from tests.bench.gate.night import make
from tests.bench.gate.noise import NOISES, Array, draw_nights
from tests.bench.table import Row

POLICY = HistoryPolicy()
LEAST, FLOOR = float(np.log1p(POLICY.jump)), float(np.log1p(POLICY.floor))
SERIES, OF_500 = 200_000, 500
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [POLICY.model_dump()]})
AGES = {"young": range(15, 25), "grown": range(25, 70), "old": range(70, 131, 3)}  # nights of history, tonight included
HEAVY, STRONG_AR, RARE_MODE = "heavy tails", "AR(1) of 3 %", "rare second mode at +30 %"
KINDS = (*NOISES, HEAVY, STRONG_AR, RARE_MODE)
STEPS = ((3.0, 0.01), (3.0, 0.03), (1.3, 0.01))  # of more than ten times the noise
FOUND = "found on its third night"
HISTORIES = (12, 20, 40)  # nights
SEED = 20261125


def list_goals(quick: bool = False) -> list[str]:
    false = [f"false jumps, {age} histories, {kind}" for kind in KINDS for age in AGES]
    return false + [
        f"x{size:g} at noise {sd:.0%} after {nights} nights, {FOUND}" for size, sd in STEPS for nights in HISTORIES
    ]


def measure(quick: bool = False) -> list[Row]:
    series = SERIES // 10 if quick else SERIES
    with ProcessPoolExecutor(2) as pool:
        counted = list(pool.map(count_jumps, KINDS, [series] * len(KINDS)))
    rates = {
        (kind, age): 1000 * jumps[age] * OF_500 / (len(nights) * series)
        for kind, jumps in zip(KINDS, counted, strict=True)
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
            rows.append(Row(name=name, ours=found, goal=95.0, better="higher", unit="%"))
    return rows


def count_jumps(kind: str, series: int) -> dict[str, int]:
    return count_by_age(kind, series, SEED, AGES, count_red)


def count_by_age(
    kind: str, series: int, seed: int, ages: Mapping[str, Sequence[int]], count_red: Callable[[Array], int]
) -> dict[str, int]:
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    reds = dict.fromkeys(ages, 0)
    for _ in range(series // OF_500):
        values = draw(kind, OF_500, ages["old"][-1], rng)
        for age, nights in ages.items():
            reds[age] += sum(count_red(values[:, :count]) for count in nights)
    return reds


def draw(kind: str, series: int, nights: int, rng: np.random.Generator) -> Array:
    if kind == HEAVY:
        return np.asarray(0.01 * rng.standard_t(2, (series, nights)), dtype=np.float64)
    if kind == STRONG_AR:
        return 3 * draw_nights("AR(1)", series, nights, rng)
    if kind == RARE_MODE:
        mode = np.log(1.3) * (rng.random((series, nights)) < 0.1)
        return np.asarray(rng.normal(0, 0.01, (series, nights)) + mode, dtype=np.float64)
    return draw_nights(kind, series, nights, rng)


def count_red(values: Array) -> int:
    """How many of the series that jump, each by itself, are called regressed in the night."""
    high = np.flatnonzero(values[:, -3:].min(axis=1) - np.median(values, axis=1) > 0.8 * LEAST)  # no other series can
    jumping = high[find_jump(values[high], LEAST, FLOOR, POLICY.min_nights).nights > 0]
    return count_red_of(values, jumping)


def count_red_of(values: Array, places: Collection[int]) -> int:
    if not len(places):
        return 0
    memory = Memory(series=[make(row, place) for place, row in enumerate(values)])
    verdicts = adjust_for_night(list(judge_histories(memory, POLICIES, (), {}, [])), POLICIES.night)
    names = {f"cell-{place}/step_time" for place in places}
    return sum(verdict.status == "regressed" for verdict in verdicts if verdict.series in names)


def find_share(size: float, sd: float, history: int, series: int) -> float:
    values = np.random.default_rng([SEED, history]).normal(0.0, sd, (series, history + 3))
    values[:, history:] += np.log(size)
    return float((find_jump(values, LEAST, FLOOR, POLICY.min_nights).nights > 0).mean())
