"""How many steps are found, how soon, and is that more than rivals find at the same rate of false alarms?"""

import math

import numpy as np

from tests.bench.gate.experiment import DEFAULT, SETTINGS, SIZES, Experiment, experiment
from tests.bench.gate.false_alarms import PER_CLEAN, PER_DIRTY
from tests.bench.gate.noise import CLEAN, NOISES, Array
from tests.bench.gate.rival_rules import DETECTORS, RULES
from tests.bench.table import Row

GOALS = {
    ("normal 1 %", 0.02): 90,
    ("normal 1 %", 0.03): 98,
    ("normal 1 %", 0.05): 100,
    ("normal 2 %", 0.03): 75,
    ("normal 2 %", 0.05): 98,
}
SURE = 2.33  # standard errors between two shares that are called different


FEWER = f"of {len(NOISES) * len(SIZES)} cells, those where"
MORE = f"{FEWER} one surely finds more at equal false alarms"


def list_goals(quick: bool = False) -> list[str]:
    steps = [f"{size:.0%} step in 5 nights, {noise}" for noise, size in GOALS]
    return [*steps, MORE, *(f"{FEWER} {rival} surely finds more" for rival in (*DETECTORS, *RULES))]


def measure(quick: bool = False) -> list[Row]:
    done = experiment(quick)
    rows = []
    for noise in NOISES:
        for size in SIZES:
            ours = done.found[noise, size, DEFAULT]
            rows.append(
                Row(
                    name=f"{size:.0%} step in 5 nights, {noise}",
                    ours=100 * float((ours <= 5).mean()),
                    goal=GOALS.get((noise, size)),
                    better="higher",
                    unit="%",
                    rival="Otava",
                    rival_value=100 * float((done.rival_found("Otava", noise, size) <= 5).mean()),
                )
            )
    for size in SIZES:
        for name, found in (
            ("two stages", done.found["normal 1 %", size, DEFAULT]),
            ("history alone", done.alone_found["normal 1 %", size]),
        ):
            theirs = float(np.median(done.rival_found("Otava", "normal 1 %", size)))
            rows.append(
                Row(
                    name=f"median nights to a {size:.0%} step, normal 1 %, {name}",
                    ours=float(np.median(found)),
                    unit="nights",
                    rival="Otava",
                    rival_value=theirs,
                )
            )
    for noise in NOISES:
        share = 100 * float(np.isfinite(done.alone_found[noise, 0.05]).mean())
        rows.append(Row(name=f"history alone, 5% step in 30 nights, {noise}", ours=share, better="higher", unit="%"))
    return rows + [row for rival in done.rivals.names for row in compare(done, rival)]


def compare(done: Experiment, rival: str) -> list[Row]:
    worse = better = 0
    for noise in NOISES:
        allowed = max(done.rival_alarms(rival, noise), PER_CLEAN if noise in CLEAN else PER_DIRTY)
        alarms = done.slower if rival in RULES else done.alarms  # a rule never says faster
        fitting = [setting for setting in range(len(SETTINGS)) if alarms[noise, setting] <= allowed]
        for size in SIZES:
            theirs = done.rival_found(rival, noise, size)
            ours = max((done.found[noise, size, one] for one in fitting), key=lambda found: np.isfinite(found).mean())
            gain = difference(ours, theirs)
            worse, better = worse + (gain < -SURE), better + (gain > SURE)
    return [
        Row(name=MORE, ours=better, goal=1, better="higher", rival=rival, rival_value=worse),
        Row(name=f"{FEWER} {rival} surely finds more", ours=worse, goal=0),
    ]


def difference(ours: Array, theirs: Array) -> float:
    """How many standard errors the first finds more often."""
    a, b = float(np.isfinite(ours).mean()), float(np.isfinite(theirs).mean())
    pooled = (a * len(ours) + b * len(theirs)) / (len(ours) + len(theirs))
    error = math.sqrt(pooled * (1 - pooled) * (1 / len(ours) + 1 / len(theirs)))
    return (a - b) / error if error else 0.0
