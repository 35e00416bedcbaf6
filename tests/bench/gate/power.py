"""How many steps are found, and how soon?"""

import numpy as np

from tests.bench.gate.experiment import SIZES, experiment
from tests.bench.gate.noise import NOISES
from tests.bench.table import Row

GOALS = {
    ("normal 1 %", 0.02): 90,
    ("normal 1 %", 0.03): 98,
    ("normal 1 %", 0.05): 100,
    ("normal 2 %", 0.03): 75,
    ("normal 2 %", 0.05): 98,
}


def list_goals(quick: bool = False) -> list[str]:
    return [f"{size:.0%} step in 5 nights, {noise}" for noise, size in GOALS]


def measure(quick: bool = False) -> list[Row]:
    done = experiment(quick)
    rows = []
    for noise in NOISES:
        for size in SIZES:
            ours = done.found[noise, size]
            rows.append(
                Row(
                    name=f"{size:.0%} step in 5 nights, {noise}",
                    ours=100 * float((ours <= 5).mean()),
                    goal=GOALS.get((noise, size)),
                    better="higher",
                    unit="%",
                )
            )
    for size in SIZES:
        for name, found in (
            ("two stages", done.found["normal 1 %", size]),
            ("history alone", done.alone_found["normal 1 %", size]),
        ):
            title = f"median nights to a {size:.0%} step, normal 1 %, {name}"
            rows.append(Row(name=title, ours=float(np.median(found)), unit="nights"))
    for noise in NOISES:
        share = 100 * float(np.isfinite(done.alone_found[noise, 0.05]).mean())
        rows.append(Row(name=f"history alone, 5% step in 30 nights, {noise}", ours=share, better="higher", unit="%"))
    return rows
