"""How long does a series take, and how does that grow? The judge of history and the rivals on the same series."""

import math
import subprocess
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.judges.history.change_points import find_changes
from tests.bench.gate.noise import Array
from tests.bench.gate.rivals import HERE, make_environment
from tests.bench.table import Row
from tests.ci.judges.judged import judge_history, make_series

LENGTHS = (1_000, 10_000, 100_000)
GOAL_S = 0.050


def list_goals(quick: bool = False) -> list[str]:
    names = ("1,000 nights, all change points", "1,000 nights, verdict of the last night")
    return [*names, "all change points: exponent of growth (1 is linear)"]


def measure(quick: bool = False) -> list[Row]:
    lengths = LENGTHS[:2] if quick else LENGTHS
    judged = {
        length: seconds(partial(judge_history, make_series(0.2 * np.exp(logs(length))), HistoryPolicy()))
        for length in lengths
    }
    changes = {length: seconds(partial(find_changes, logs(length))) for length in lengths}
    theirs = ask()
    rows = [
        Row(
            name="1,000 nights, all change points",
            ours=changes[1000],
            goal=GOAL_S,
            unit="s",
            rival=rival,
            rival_value=spent,
        )
        for rival, spent in theirs.items()
    ]
    rows += [Row(name=f"{n:,} nights, verdict of the last night", ours=judged[n], unit="s") for n in lengths]
    rows += [Row(name=f"{n:,} nights, all change points", ours=changes[n], unit="s") for n in lengths[1:]]
    rows[len(theirs)] = Row(name="1,000 nights, verdict of the last night", ours=judged[1000], goal=GOAL_S, unit="s")
    growth = math.log(changes[lengths[-1]] / changes[lengths[0]]) / math.log(lengths[-1] / lengths[0])
    return [*rows, Row(name="all change points: exponent of growth (1 is linear)", ours=growth, goal=1.2)]


def logs(length: int) -> Array:
    rng = np.random.default_rng(1)
    return np.asarray(rng.normal(0, 0.01, length) + 0.03 * (np.arange(length) >= length // 2), dtype=np.float64)


def seconds(work: Callable[[], object]) -> float:
    """Median of five, after one that does not count."""
    spent = []
    for _ in range(6):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return median(spent[1:])


def ask() -> dict[str, float]:
    code = (
        "import numpy as np, time, rival_rules as r\n"
        "v = np.exp(np.random.default_rng(1).normal(0, .01, 1000) + .03 * (np.arange(1000) >= 500))\n"
        "for name in ('Otava', 'asv', 'PELT'):\n"
        "    r.DETECTORS[name](v); t = time.perf_counter(); r.DETECTORS[name](v)\n"
        "    print(f'{name}|{time.perf_counter() - t}')\n"
    )
    command = [str(make_environment()), "-c", code]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    answers = (line.split("|") for line in done.stdout.splitlines() if "|" in line)
    return {name: float(spent) for name, spent in answers}
