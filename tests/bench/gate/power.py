"""How many steps are found, and how soon?"""

from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

from nightjar_ci.judges.history.change_points import find_changes
from tests.bench.gate.noise import NOISES, Array, draw_nights
from tests.bench.gate.two_stages import AT, NIGHTS, SEED, first_alarm, play
from tests.bench.table import Row

SIZES = (0.02, 0.03, 0.05, 0.10)
GOALS = {
    ("normal 1 %", 0.02): 90,
    ("normal 1 %", 0.03): 98,
    ("normal 1 %", 0.05): 100,
    ("normal 2 %", 0.03): 75,
    ("normal 2 %", 0.05): 98,
}
PAIRED, ALONE = 400, 100  # series of each noise and size
WITHIN, LASTING = 10, 30  # nights in which both stages, and history alone, are asked


def list_goals(quick: bool = False) -> list[str]:
    return [f"{size:.0%} step in 5 nights, {noise}" for noise, size in GOALS]


def measure(quick: bool = False) -> list[Row]:
    paired, alone = (n // 10 if quick else n for n in (PAIRED, ALONE))
    cells = list(product(NOISES, SIZES))
    noises, sizes = zip(*cells, strict=True)
    with ProcessPoolExecutor(2) as pool:
        both = dict(zip(cells, pool.map(judge_steps, noises, sizes, [paired] * len(cells)), strict=True))
        lasting = dict(zip(cells, pool.map(judge_alone_steps, noises, sizes, [alone] * len(cells)), strict=True))
    rows = [
        Row(
            name=f"{size:.0%} step in 5 nights, {noise}",
            ours=100 * float((nights <= 5).mean()),
            goal=GOALS.get((noise, size)),
            better="higher",
            unit="%",
        )
        for (noise, size), nights in both.items()
    ]
    for size in SIZES:
        for name, found in (("two stages", both), ("history alone", lasting)):
            title = f"median nights to a {size:.0%} step, normal 1 %, {name}"
            rows.append(Row(name=title, ours=float(np.median(found["normal 1 %", size])), unit="nights"))
    for noise in NOISES:
        share = 100 * float(np.isfinite(lasting[noise, 0.05]).mean())
        rows.append(Row(name=f"history alone, 5% step in 30 nights, {noise}", ours=share, better="higher", unit="%"))
    return rows


def stepped(noise: str, size: float, series: int) -> tuple[Array, Array]:
    """Series with a step, and their level."""
    rng = np.random.default_rng([SEED, NOISES.index(noise), round(1e4 * size)])
    level = np.log1p(size) * (np.arange(NIGHTS) >= AT)
    return draw_nights(noise, series, NIGHTS, rng) + level, level


def judge_steps(noise: str, size: float, series: int) -> Array:
    rng = np.random.default_rng([SEED, NOISES.index(noise), 2, 1, round(1e4 * size)])
    return first_alarm(play(noise, *stepped(noise, size, series), rng, range(AT, AT + WITHIN)), AT)


def judge_alone_steps(noise: str, size: float, series: int) -> Array:
    """Nights until history alone names a change within five nights of the step; inf for not within 30."""

    def first(values: Array) -> float:
        for night in range(AT, AT + LASTING):
            if any(abs(change.index - AT) <= 5 and change.shift > 0 for change in find_changes(values[: night + 1])):
                return night - AT + 1.0
        return np.inf

    return np.array([first(one) for one in stepped(noise, size, series)[0]])
