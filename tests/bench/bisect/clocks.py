"""How long a run takes on machines that are not always equally fast, before a change and after it.

In: a machine's name and random numbers. Out: for each run, one after the other, how long it takes on a rung before the
change and how long on one after it; all noise multiplies, so what slows the machine slows every rung alike.

timings.csv holds pairs of processes, one before a change of a NumPy program by 10 % and one after it, run one right
after the other in random order on two cores. Recorded machines replay them by the stationary bootstrap, so that what
hangs together in time stays so.

Source: Politis and Romano, The stationary bootstrap (1994).
"""

import csv
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHANGE, SD = 0.1, 0.03
SIMULATED = ("quiet", "phases", "modes", "spikes", "drift", "two machines", "loud", "load comes and goes")
RECORDED = ("recorded, as it is", "recorded, beside two busy processes", "recorded, load comes and goes")
MACHINES = (*SIMULATED, *RECORDED)
BLOCK = 40  # rows that are replayed in one go, on average: half a minute

Clock = Iterator[tuple[float, float]]


def start_clock(machine: str, random: np.random.Generator, change: float = CHANGE, sd: float = SD) -> Clock:
    if machine in RECORDED:
        yield from replay(machine, random)
        return
    slow = slowness(machine, random)
    while True:
        time = 10 * math.exp(sd * random.normal()) * next(slow)
        yield time, time * (1 + change)


def replay(machine: str, random: np.random.Generator) -> Clock:
    """Rows of a recording: blocks of random length from random places, each run at the next row."""
    rows = read_recording()[machine]
    at = int(random.integers(len(rows)))
    while True:
        before, after = rows[at]
        yield float(before), float(after)
        at = (at + 1) % len(rows)
        if random.random() < 1 / BLOCK:
            at = int(random.integers(len(rows)))


@cache
def read_recording() -> dict[str, NDArray[np.float64]]:
    """Milliseconds before the change and after it, on each recorded machine; shape (rows, 2)."""
    with Path(__file__).with_name("timings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        machine: np.array([[row["before_ms"], row["after_ms"]] for row in rows if row["machine"] == machine], float)
        for machine in RECORDED
    }


def slowness(machine: str, random: np.random.Generator) -> Iterator[float]:
    """How much slower than at its best a simulated machine is at each run."""
    slow, until, tick = False, random.exponential(20), 0
    change = random.integers(5, 40)
    others = 0
    while True:
        tick += 1
        factor = 1.0
        if machine == "phases":  # of 20 runs on average
            if tick > until:
                slow, until = not slow, tick + random.exponential(20)
            factor = 2.6 if slow else 1.0
        elif machine == "modes":  # 10 % of runs in the slow mode, later 60 %
            factor = 1.3 if random.random() < (0.1 if tick < change else 0.6) else 1.0
        elif machine == "spikes":
            factor = 5.0 if random.random() < 0.2 else 1.0
        elif machine == "drift":
            factor = 1.01**tick
        elif machine == "two machines":  # each run is on either
            factor = 1.4 if random.random() < 0.5 else 1.0
        elif machine == "loud":
            factor = math.exp(0.3 * random.normal())
        elif machine == "load comes and goes":  # another process every 15 runs, for 12 runs: it slows, and not evenly
            others += int(random.poisson(1 / 15)) - int(random.binomial(others, 1 / 12))
            factor = 1 + sum(random.uniform(0.1, 0.5) for _ in range(others))
        yield factor
