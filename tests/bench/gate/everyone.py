"""Everyone asked the same: nights of a hundred series, of which ten became 5 % slower, on every set that there is.

In: seeded series of each kind of noise, and the real series of `public_data` without their own changes: less their
running median. On each of ten nights everyone says which series are slower. Out: false reds, steps that are found, and
F1: ours with re-runs and by history alone, and each rival's. All use their defaults on every set.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import median_filter

from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.gate.history import Memory, judge_histories, screen_histories
from nightjar_ci.judges.false_discovery import adjust_for_night
from tests.bench.gate.noise import NOISES, Array, Rng, draw_nights, draw_pairs
from tests.bench.gate.public_data import read_all
from tests.bench.gate.rivals import Rivals, ask_rivals
from tests.bench.gate.whole import make_pairs
from tests.bench.table import Row
from tests.ci.judges.judged import make_series

POLICY = HistoryPolicy()
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [POLICY.model_dump()]})
SERIES, STEPPED, NIGHTS, AT, WITHIN, SIZE = 100, 10, 90, 60, 10, 0.05
AROUND = 31  # nights of the running median
FALSE_REDS, PAIRED, ALONE, LEAD = 1.0, 90.0, 70.0, 0.05
SEED = 20261126
WAYS = ("with re-runs", "history alone")


def list_goals(quick: bool = False) -> list[str]:
    reds = [f"false reds in 1,000 unchanged nights, {way}: most of any set" for way in WAYS]
    return [*reds, *(f"{SIZE:.0%} steps found in {WITHIN} nights, {way}" for way in WAYS), "F1 above the best rival's"]


@dataclass(frozen=True, kw_only=True)
class Set:
    name: str
    values: Array


def measure(quick: bool = False) -> list[Row]:
    sets = make_sets(1 if quick else 4)
    tasks = [(one.name, group, values) for one in sets for group, values in enumerate(one.values)]
    with ProcessPoolExecutor(2) as pool:
        judged = list(pool.map(judge_group, *zip(*tasks, strict=True)))
    ours = {
        (way, one.name): np.stack(
            [told[way] for (name, *_), told in zip(tasks, judged, strict=True) if name == one.name]
        )
        for one in sets
        for way in WAYS
    }
    rivals = ask_rivals({f"step_{one.name}": one.values.reshape(-1, NIGHTS) for one in sets}, AT)
    return list_rows([one.name for one in sets], ours, rivals)


def list_rows(names: list[str], ours: dict[tuple[str, str], Array], rivals: Rivals) -> list[Row]:
    rows, most = [], dict.fromkeys(WAYS, 0.0)
    for name in names:
        for way in WAYS:
            reds = 1000 * float((ours[way, name][:, STEPPED:]).sum()) / (ours[way, name][:, STEPPED:].size * WITHIN)
            most[way] = max(most[way], reds)
            rows.append(Row(name=f"false reds in 1,000 nights, {name}, {way}", ours=reds))
            share = 100 * float((ours[way, name][:, :STEPPED] > 0).mean())
            rows.append(Row(name=f"steps found, {name}, {way}", ours=share, better="higher", unit="%"))
    for way in WAYS:
        name = f"false reds in 1,000 unchanged nights, {way}: most of any set"
        rows.append(Row(name=name, ours=most[way], goal=FALSE_REDS))
    for way, goal in zip(WAYS, (PAIRED, ALONE), strict=True):
        share = 100 * float(np.mean([(ours[way, name][:, :STEPPED] > 0).mean() for name in names]))
        name = f"{SIZE:.0%} steps found in {WITHIN} nights, {way} (mean of {len(names)} sets)"
        rows.append(Row(name=name, ours=share, goal=goal, better="higher", unit="%"))
    scores = {way: float(np.mean([find_f1(ours[way, name]) for name in names])) for way in WAYS}
    theirs = {
        rival: float(np.mean([find_f1(rivals.of(rival, f"step_{name}")) for name in names])) for rival in rivals.names
    }
    for way in WAYS:
        rows += [
            Row(name=f"F1, {way}", ours=scores[way], better="higher", rival=rival, rival_value=score)
            for rival, score in theirs.items()
        ]
    best = max(theirs, key=lambda rival: theirs[rival])
    lead = scores[WAYS[0]] - theirs[best]
    rows.append(Row(name=f"F1 above the best rival's ({best})", ours=lead, goal=LEAD, better="higher"))
    return rows


def find_f1(nights: Array) -> float:
    """F1 of the series, group after group, that were called slower on one of the nights: 0 for never."""
    told = nights.reshape(-1) > 0
    stepped = np.arange(len(told)) % SERIES < STEPPED
    return 2 * float(told[stepped].sum()) / float(told.sum() + stepped.sum())


def make_sets(groups: int) -> list[Set]:
    sets = []
    for number, noise in enumerate(NOISES):
        rng = np.random.default_rng([SEED, number])
        sets.append(Set(name=noise, values=draw_nights(noise, groups * SERIES, NIGHTS, rng)))
    for number, (project, histories) in enumerate(read_all()):
        rng = np.random.default_rng([SEED, 100 + number])
        sets.append(Set(name=project, values=np.stack([draw_stretch(histories, rng) for _ in range(groups * SERIES)])))
    step = np.zeros((SERIES, NIGHTS))
    step[:STEPPED, AT:] = np.log1p(SIZE)
    return [Set(name=one.name, values=one.values.reshape(-1, SERIES, NIGHTS) + step) for one in sets]


def draw_stretch(histories: list[Array], rng: Rng) -> Array:
    whole = histories[rng.integers(len(histories))]
    residuals = whole - median_filter(whole, AROUND, mode="nearest")
    start = int(rng.integers(len(whole) - NIGHTS + 1))
    return np.asarray(residuals[start : start + NIGHTS], dtype=np.float64)


def judge_group(name: str, group: int, values: Array) -> dict[str, Array]:
    """On how many of the ten nights each series was called regressed: 0 for never."""
    rng = np.random.default_rng([SEED, group])
    reds = {way: np.zeros(SERIES) for way in WAYS}
    for night in range(AT, AT + WITHIN):
        memory = Memory(
            series=[
                make_series(np.exp(row), f"cell-{place}/step_time") for place, row in enumerate(values[:, : night + 1])
            ]
        )
        reruns = {}
        for series in screen_histories(memory, POLICIES).values():
            if series.needs_rerun:
                place = int(series.series.cell.removeprefix("cell-"))
                changed = place < STEPPED and int(series.good_night) < AT
                pairs = draw_ratios(name, values[place, max(0, night - 30) : night], rng)
                reruns[series.series.cell] = ("then", make_pairs(changed * np.log1p(SIZE) + pairs))
        for way, runs in zip(WAYS, (reruns, {}), strict=True):
            judged = adjust_for_night(list(judge_histories(memory, POLICIES, (), runs, [])), POLICIES.night)
            for verdict in judged:
                if verdict.status == "regressed":
                    reds[way][int(verdict.cell.removeprefix("cell-"))] += 1
    return reds


def draw_ratios(name: str, around: Array, rng: Rng) -> Array:
    """Log ratios of pairs: of the set's noise, or of the real nights around, their level taken out."""
    if name in NOISES:
        return np.asarray(draw_pairs(name, 1, POLICY.looks[-1], rng)[0], dtype=np.float64)
    ours, theirs = rng.choice(np.diff(around) / 2**0.5, (2, POLICY.looks[-1]))
    return np.asarray(ours - theirs, dtype=np.float64)
