"""What did everyone say about the same seeded series? The one experiment that `false_alarms` and `power` read.

In: how many series. Out: for every noise model, alarms on unchanged series, ours and each rival's, and nights until we
find a step.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from nightjar_ci.judges.history.change_points import find_changes
from tests.bench.gate.noise import NOISES, Array, draw_nights
from tests.bench.gate.rival_rules import RULES
from tests.bench.gate.rivals import Rivals, ask_rivals
from tests.bench.gate.two_stages import FIRST, first_alarm, play

NIGHTS, AT, WITHIN = 120, 60, 10
SIZES = (0.02, 0.03, 0.05, 0.10)
SEED = 20261121


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    alarms: dict[str, float]
    runs: dict[str, float]
    alone: dict[str, float]
    found: dict[tuple[str, float], Array]
    alone_found: dict[tuple[str, float], Array]
    rivals: Rivals

    def rival_alarms(self, rival: str, noise: str) -> float:
        """A rival's false alarms in 1,000 nights; of a rule only those nights count that it judged."""
        found = self.rivals.of(rival, f"null_{noise}")
        return 1000 * float(found.mean()) / (NIGHTS - FIRST if rival in RULES else NIGHTS)


@cache
def experiment(quick: bool) -> Experiment:
    began = time.perf_counter()
    share = 10 if quick else 1
    null, steps, theirs, their_steps = (n // share for n in (3000, 400, 910, 100))
    with ProcessPoolExecutor(2) as pool:
        nulls = {noise: pool.submit(judge_null, noise, null) for noise in NOISES}
        steps_found = {
            (noise, size): pool.submit(judge_steps, noise, size, steps) for noise in NOISES for size in SIZES
        }
        lasting = {noise: pool.submit(judge_alone, noise, theirs) for noise in NOISES}
        lasting_steps = {
            (noise, size): pool.submit(judge_alone_steps, noise, size, their_steps)
            for noise in NOISES
            for size in SIZES
        }
        alarms = {noise: judged.result()[0] for noise, judged in nulls.items()}
        runs = {noise: judged.result()[1] for noise, judged in nulls.items()}
        found = {key: judged.result() for key, judged in steps_found.items()}
        alone = {key: judged.result() for key, judged in lasting.items()}
        alone_found = {key: judged.result() for key, judged in lasting_steps.items()}
    print(f"ours: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rivals = ask_rivals({f"null_{noise}": unchanged(noise, theirs) for noise in NOISES}, AT)
    print(f"with rivals: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return Experiment(alarms=alarms, runs=runs, alone=alone, found=found, alone_found=alone_found, rivals=rivals)


def unchanged(noise: str, series: int, nights: int = NIGHTS) -> Array:
    return draw_nights(noise, series, nights, np.random.default_rng([SEED, NOISES.index(noise), 0]))


def stepped(noise: str, size: float, series: int) -> Array:
    rng = np.random.default_rng([SEED, NOISES.index(noise), round(1e4 * size)])
    return np.asarray(
        draw_nights(noise, series, NIGHTS, rng) + np.log1p(size) * (np.arange(NIGHTS) >= AT), dtype=np.float64
    )


def judge_null(noise: str, series: int) -> tuple[float, float]:
    rng = np.random.default_rng([SEED, NOISES.index(noise), 1, 1])
    played = play(noise, unchanged(noise, series), np.zeros(NIGHTS), rng)
    return 1000 * float((played.alarms != 0).sum()) / played.nights, played.runs / played.nights


def judge_steps(noise: str, size: float, series: int) -> Array:
    rng = np.random.default_rng([SEED, NOISES.index(noise), 2, 1, round(1e4 * size)])
    level = np.log1p(size) * (np.arange(NIGHTS) >= AT)
    return first_alarm(play(noise, stepped(noise, size, series), level, rng, range(AT, AT + WITHIN)), AT)


def judge_alone(noise: str, series: int) -> float:
    return 1000 * sum(len(find_changes(one)) for one in unchanged(noise, series)) / (series * NIGHTS)


def judge_alone_steps(noise: str, size: float, series: int) -> Array:
    """Nights until history alone names a change within five nights of the step; inf for not within 30."""

    def first(values: Array) -> float:
        for night in range(AT, AT + 30):
            if any(abs(change.index - AT) <= 5 and change.shift > 0 for change in find_changes(values[: night + 1])):
                return night - AT + 1.0
        return np.inf

    return np.array([first(one) for one in stepped(noise, size, series)])
