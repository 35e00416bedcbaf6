"""The whole judge of a history as the nightly calls it: screening, pairs, verdict, and open regressions.

In: seeded series, with a step that is mended again or without. Out: false alarms, steps that are found within five
nights, and regressions that are taken back while they last. The code under test is `screen_series` and `judge_history`;
only the runs are made up. The other parts play many more series through the pieces of it.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.run_record import RunRecord, Sample
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.performance.performance import Pair
from tests.bench.gate.false_alarms import PER_CLEAN, PER_DIRTY
from tests.bench.gate.noise import CLEAN, DIRTY, NOISES, Array, Rng, draw_nights, draw_pairs
from tests.bench.gate.two_stages import FIRST
from tests.bench.table import Row
from tests.ci.judges.judged import judge_history, make_series, screen_series

POLICY = HistoryPolicy()
NIGHTS, SERIES = 120, 150
BROKEN, MENDED, STEP = 60, 90, 0.03
STEPPED = {"normal 0.5 %": 95, "normal 1 %": 95, "outliers": 65, "AR(1)": 95, "bimodal": 65}  # % found soon, the goal
SOON = 5  # nights
TAKEN_BACK = 1.0  # % of the nights on which a regression stands
SEED = 20261122


def list_goals(quick: bool = False) -> list[str]:
    back = [f"{STEP:.0%} step, {noise}: nights on which it is taken back" for noise in STEPPED]
    soon = [f"{STEP:.0%} step, {noise}: found within {SOON} nights" for noise in STEPPED]
    return ["false alarms, mean of clean noise", "false alarms, mean of dirty noise", *back, *soon]


def measure(quick: bool = False) -> list[Row]:
    series = SERIES // 10 if quick else SERIES
    with ProcessPoolExecutor(2) as pool:
        nulls = {noise: pool.submit(play_unchanged, noise, series) for noise in NOISES}
        steps = {noise: pool.submit(play_steps, noise, series) for noise in STEPPED}
    rows = []
    for name, kinds, goal in (("clean", CLEAN, PER_CLEAN), ("dirty", DIRTY, PER_DIRTY)):
        rate = 1000 * sum(nulls[noise].result() for noise in kinds) / (len(kinds) * series * (NIGHTS - FIRST))
        rows.append(Row(name=f"false alarms, mean of {name} noise", ours=rate, goal=goal, unit="/1000 nights"))
    for noise, goal in STEPPED.items():
        told = steps[noise].result()
        name = f"{STEP:.0%} step, {noise}"
        soon = f"{name}: found within {SOON} nights"
        rows.append(Row(name=soon, ours=told.soon, goal=goal, better="higher", unit="%"))
        back = f"{name}: nights on which it is taken back"
        rows.append(Row(name=back, ours=told.taken_back, goal=TAKEN_BACK, unit="%"))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    soon: float
    taken_back: float


def play_unchanged(noise: str, series: int) -> int:
    rng = np.random.default_rng([SEED, NOISES.index(noise), 0])
    values = draw_nights(noise, series, NIGHTS, rng)
    told = (play(noise, one, np.zeros(NIGHTS), rng) for one in values)
    return sum(int((np.diff(one.astype(int), prepend=0) > 0).sum()) for one in told)


def play_steps(noise: str, series: int) -> Told:
    rng = np.random.default_rng([SEED, NOISES.index(noise), 1])
    night = np.arange(NIGHTS)
    level = np.log1p(STEP) * ((night >= BROKEN) & (night < MENDED))
    told = np.array([play(noise, one + level, level, rng) for one in draw_nights(noise, series, NIGHTS, rng)])
    lasting = told[:, BROKEN:MENDED]
    found = lasting[lasting.any(axis=1)]
    since = np.arange(MENDED - BROKEN) > found.argmax(axis=1)[:, None]
    return Told(
        soon=100 * float(lasting[:, :SOON].any(axis=1).mean()),
        taken_back=100 * float((since & ~found).sum() / since.sum()),
    )


def play(noise: str, values: Array, level: Array, rng: Rng) -> Array:
    """Whether each night is called regressed, shape (NIGHTS,); those before `FIRST` are not judged."""
    told = np.zeros(NIGHTS, bool)
    earlier: Verdict | None = None
    for night in range(FIRST, NIGHTS):
        shown = values[: night + 1]
        series = make_series(np.exp(shown))
        screened = screen_series(series, POLICY, earlier=earlier)
        rerun = None
        if screened is not None and screened.needs_rerun:
            change = level[night] - level[int(screened.good_night)]
            rerun = ("then", make_pairs(change + draw_pairs(noise, 1, POLICY.looks[-1], rng)[0]))
        verdict = judge_history(series, POLICY, rerun=rerun, earlier=earlier)
        told[night] = verdict is not None and verdict.status == "regressed"
        earlier = verdict if told[night] else None
    return told


def make_pairs(ratios: Array) -> list[Pair]:
    def run(value: float) -> RunRecord:
        sample = Sample(name="step_time", unit="s", better="lower", values=(value,))
        fields: dict[str, Any] = {"job": "made", "samples": (sample,)}
        return RunRecord.model_construct(**fields)

    return [
        Pair(number=number, candidate=run(float(np.exp(ratio))), reference=run(1.0))
        for number, ratio in enumerate(ratios)
    ]
