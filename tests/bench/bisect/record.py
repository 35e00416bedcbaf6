"""A recorder of real timings, which the bench replays: a small program before a change by 10 % and after it.

`python -m tests.bench.bisect.record` writes `timings.csv`: a row for each pair of processes, one of each build, run one
right after the other in random order: on this machine as it is, beside two busy processes, and beside busy processes
that come and go. It takes about ten minutes on two cores.
"""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RECORDED = Path(__file__).parent / "timings.csv"
ROWS = 300  # pairs of processes on each machine
ROUNDS = {"before_ms": 2000, "after_ms": 2200}
PROGRAM = """import sys, time
import numpy as np
weights = np.random.default_rng(0).normal(size=(96, 96)) / 10
state = weights[:, :48]
for rounds in (20, int(sys.argv[1])):
    start = time.perf_counter()
    for _ in range(rounds):
        state = np.tanh(weights @ state)
print(1000 * (time.perf_counter() - start))
"""
STAY_S, AWAY_S = 4.0, 4.0  # mean time that a busy process runs, and that passes until the next one starts


def time_build(build: str) -> float:
    """Milliseconds that a new process of that build measures."""
    command = [sys.executable, "-c", PROGRAM, str(ROUNDS[build])]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **threads}, check=True, capture_output=True, text=True)
    return float(done.stdout)


@contextmanager
def no_load() -> Iterator[None]:
    """The machine as it is."""
    yield


@contextmanager
def two_busy_processes() -> Iterator[None]:
    """Two processes that compute for nothing."""
    busy = [start_busy() for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            stop(process)


@contextmanager
def changing_load() -> Iterator[None]:
    """Busy processes that come at random and stay for a random time; now none, now several."""
    ended = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def come_and_go() -> None:
        while not ended.wait(random.expovariate(1 / AWAY_S)):
            process = start_busy()
            started.append(process)
            threading.Timer(random.expovariate(1 / STAY_S), stop, [process]).start()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for process in started:
            stop(process)


def start_busy() -> subprocess.Popen[bytes]:
    """A process that computes for nothing."""
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a busy process; nothing where it has ended."""
    process.kill()
    process.wait()


MACHINES: dict[str, Callable[[], object]] = {
    "recorded, as it is": no_load,
    "recorded, beside two busy processes": two_busy_processes,
    "recorded, load comes and goes": changing_load,
}


def main() -> None:
    """Records all machines."""
    rows = []
    for machine, load in MACHINES.items():
        with load():  # type: ignore[attr-defined]
            for _ in range(ROWS):
                order = random.sample(list(ROUNDS), 2)
                times = {build: time_build(build) for build in order}
                rows.append([machine, *(f"{times[build]:.2f}" for build in ROUNDS)])
        print(f"{machine}: load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["machine", *ROUNDS])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
