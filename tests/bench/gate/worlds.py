"""Suites as they really are, by history alone: machines with moods, new machines, rhythms, drifts, zeros, slow seeds.

In: seeded suites of 46 series in each world, of which eight become 5 % and eight 20 % slower on night 65 of 100. Every
night is judged with the verdicts of the night before. Out: false reds of the unchanged series, and the share of steps
that are found in time. In three worlds something else counts, which the row says.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.history import Memory, judge_histories
from nightjar_ci.judges.false_discovery import adjust_for_night
from tests.bench.gate.noise import Array, Rng, draw_nights
from tests.bench.table import Row
from tests.ci.judges.judged import make_series

POLICY = HistoryPolicy()
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [POLICY.model_dump()]})
UNCHANGED, SMALL, LARGE, NIGHTS, AT = 30, 8, 8, 100, 65
SERIES = UNCHANGED + SMALL + LARGE
SIZES = np.repeat([0.0, 0.05, 0.2], (UNCHANGED, SMALL, LARGE))
FIRST, QUICK_FIRST, QUICK_LAST, SEEDS = 30, 58, 76, 3
SOON, LATER = 3, 10  # nights in which 20 % and 5 % are to be found
FALSE_REDS, FOUND_LARGE, FOUND_SMALL = 1.0, 90.0, 80.0
SEED = 20261127
TIME = np.arange(NIGHTS)


@dataclass(frozen=True, kw_only=True)
class World:
    """A suite's nights: log values without the steps, shape (SERIES, NIGHTS), and the machine of each night."""

    draw: Callable[[Rng], Array]
    noise: bool = False  # of 1 % and daily, so that 5 % are to be found
    heavy: bool = False  # tails in which 20 % are nothing
    machines: Callable[[Rng], list[str]] = lambda rng: ["A"] * NIGHTS


def normal(rng: Rng, sd: float = 0.01) -> Array:
    return rng.normal(0.0, sd, (SERIES, NIGHTS))


def of_noise(kind: str) -> Callable[[Rng], Array]:
    return lambda rng: draw_nights(kind, SERIES, NIGHTS, rng)


def with_all(shape: Callable[[Rng], NDArray[Any]], sd: float = 0.01) -> Callable[[Rng], Array]:
    return lambda rng: np.asarray(normal(rng, sd) + shape(rng), dtype=np.float64)


def draw_spells(rng: Rng) -> Array:
    """Now and then the machine is 8 % slower, for about eight nights."""
    level, night = np.zeros(NIGHTS), int(rng.integers(10, 25))
    while night < NIGHTS:
        lasts = int(rng.integers(6, 10))
        level[night : night + lasts] = np.log(1.08)
        night += lasts + int(rng.integers(10, 25))
    return level


def unlike(nights: Callable[[Rng], NDArray[Any]]) -> Callable[[Rng], Array]:
    """A machine that is some 30 % slower on these nights, for each series by its own factor."""
    return with_all(lambda rng: np.outer(rng.normal(0.3, 0.06, SERIES), nights(rng)))


WORLDS = {
    "noise of 0.2 %": World(draw=of_noise("normal 0.2 %")),
    "noise of 1 %": World(draw=normal, noise=True),
    "noise of 2 %": World(draw=of_noise("normal 2 %")),
    "outliers": World(draw=of_noise("outliers")),
    "loud spells": World(draw=of_noise("heteroscedastic")),
    "neighbours alike": World(draw=of_noise("AR(1)")),
    "two modes of each series": World(draw=of_noise("bimodal")),
    "spikes": World(draw=of_noise("spikes")),
    "heavy tails": World(draw=lambda rng: np.asarray(0.01 * rng.standard_t(2, (SERIES, NIGHTS))), heavy=True),
    "a timer of 2 % steps": World(
        draw=lambda rng: np.asarray(np.log(np.round(np.exp(normal(rng)) / 0.02) * 0.02)), noise=True
    ),
    "a drift of 0.01 % a night": World(draw=of_noise("drift"), noise=True),
    "each second drifts by 0.1 % a night": World(
        draw=with_all(lambda rng: np.outer(np.arange(SERIES) % 2, 1e-3 * TIME))
    ),
    "all drift by 0.1 % a night": World(draw=with_all(lambda rng: 1e-3 * TIME), noise=True),
    "machine 8 % slower for eight nights": World(draw=with_all(draw_spells), noise=True),
    "machine's nights alike": World(draw=with_all(lambda rng: draw_nights("AR(1)", 1, NIGHTS, rng)[0])),
    "weekends + 15 %": World(draw=with_all(lambda rng: np.log(1.15) * (TIME % 7 >= 5))),
    "machines alternate by 12 %": World(draw=with_all(lambda rng: np.log(1.12) * (TIME % 2))),
    "a busy night of all, one in ten": World(draw=with_all(lambda rng: 0.3 * (rng.random(NIGHTS) < 0.1)), noise=True),
    "a pool of two kinds": World(
        draw=lambda rng: normal(rng),
        machines=lambda rng: ["AB"[kind] for kind in (rng.random(NIGHTS) < 0.3).astype(int)],
    ),
    "a byte more each night": World(draw=lambda rng: np.log(4e9 + TIME + np.zeros((SERIES, 1)))),
    "a new machine": World(draw=normal, machines=lambda rng: ["AB"[night >= AT] for night in range(NIGHTS)]),
    "all 3 % slower": World(draw=with_all(lambda rng: np.log(1.03) * (TIME >= AT), 0.02)),
    "one seed of three": World(draw=normal),
    "from zero": World(draw=normal),
    "a machine of own factors since night 45": World(draw=unlike(lambda rng: TIME >= 45)),
    "own factors, one night in four": World(draw=unlike(lambda rng: rng.random(NIGHTS) < 0.25)),
}
NEW, SUITE, SEEDED, ZERO = "a new machine", "all 3 % slower", "one seed of three", "from zero"


def list_goals(quick: bool = False) -> list[str]:
    goals = [f"false reds in 1,000 nights, {world}" for world in WORLDS]
    goals += [f"20 % in {SOON} nights, {name}" for name, one in WORLDS.items() if has_large_goal(name, one)]
    goals += [f"5 % in {LATER} nights, {name}" for name, one in WORLDS.items() if one.noise]
    return [*goals, f"series said to be ok, first {LATER} nights, {NEW}", f"nights to the one finding, {SUITE}"]


def has_large_goal(name: str, world: World) -> bool:
    return not world.heavy and name != NEW


def measure(quick: bool = False) -> list[Row]:
    seeds = 1 if quick else SEEDS
    tasks = [(name, seed, quick) for name in WORLDS for seed in range(seeds)]
    with ProcessPoolExecutor(2) as pool:
        played = list(pool.map(play, *zip(*tasks, strict=True)))
    rows = []
    for number, (name, world) in enumerate(WORLDS.items()):
        told = [one for one, _ in played[number * seeds : (number + 1) * seeds]]
        red = np.stack([statuses == "regressed" for statuses in told])
        judged = np.stack([statuses != "" for statuses in told])
        reds = 1000 * float(red[:, :UNCHANGED].sum()) / float(judged[:, :UNCHANGED].sum())
        rows.append(Row(name=f"false reds in 1,000 nights, {name}", ours=reds, goal=FALSE_REDS))
        soon = 100 * float(red[:, UNCHANGED + SMALL :, AT : AT + SOON].any(axis=2).mean())
        goal = FOUND_LARGE if has_large_goal(name, world) else None
        rows.append(Row(name=f"20 % in {SOON} nights, {name}", ours=soon, goal=goal, better="higher", unit="%"))
        later = 100 * float(red[:, UNCHANGED : UNCHANGED + SMALL, AT : AT + LATER].any(axis=2).mean())
        goal = FOUND_SMALL if world.noise else None
        rows.append(Row(name=f"5 % in {LATER} nights, {name}", ours=later, goal=goal, better="higher", unit="%"))
        if name == NEW:
            silent = 100 * float(np.mean([np.isin(one[:, AT : AT + LATER], ("ok", "improved")) for one in told]))
            rows.append(Row(name=f"series said to be ok, first {LATER} nights, {name}", ours=silent, goal=0, unit="%"))
        if name == SUITE:
            nights = [first for _, first in played[number * seeds : (number + 1) * seeds]]
            rows.append(Row(name=f"nights to the one finding, {name}", ours=max(nights), goal=SOON))
    return rows


def play(name: str, seed: int, quick: bool) -> tuple[Array, float]:
    """The status of each series in each night, shape (SERIES, NIGHTS), empty for a night that is not judged; and the
    number of nights until a finding says that all series changed together."""
    world = WORLDS[name]
    rng = np.random.default_rng([SEED, seed, list(WORLDS).index(name)])
    values = np.exp(world.draw(rng) + (np.log1p(SIZES)[:, None] * (TIME >= AT) if name != SEEDED else 0.0))
    machines = world.machines(rng)
    if len(set(machines)) > 1:
        values *= np.where(np.array(machines) == "B", 1.12, 1.0)
    worst = None
    if name == SEEDED:
        runs = values[..., None] * np.exp(rng.normal(0.0, 0.01, (SERIES, NIGHTS, 3)))
        runs[..., 1] *= 1 + SIZES[:, None] * (TIME >= AT)
        values, worst = np.median(runs, axis=2), runs.max(axis=2)
    elif name == ZERO:
        values = np.round(100 * SIZES)[:, None] * (TIME >= AT)
    earlier: dict[tuple[str, str], Verdict] = {}
    told, together = np.full((SERIES, NIGHTS), "", dtype="U12"), np.inf
    for night in range(QUICK_FIRST, QUICK_LAST) if quick else range(FIRST, NIGHTS):
        shown = slice(0, night + 1)
        series = [
            replace(
                make_series(values[place, shown], f"cell-{place}/step_time", machines=machines[shown]),
                worst=None if worst is None else worst[place, shown],
            )
            for place in range(SERIES)
        ]
        before = {one: verdict for (one, machine), verdict in earlier.items() if machine == machines[night]}
        memory = Memory(series=series, earlier=before)
        for verdict in adjust_for_night(list(judge_histories(memory, POLICIES, (), {}, [])), POLICIES.night):
            told[int(verdict.cell.removeprefix("cell-")), night] = verdict.status
            earlier.pop((verdict.series, machines[night]), None)
            if verdict.status == "regressed":
                earlier[verdict.series, machines[night]] = verdict
            if "shared" in verdict.policy and night >= AT:
                together = min(together, night - AT + 1.0)
    return told, together
