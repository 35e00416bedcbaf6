"""Who takes the least time for a training step? Contestants run block by block in turn.

In: a preset and the names of contestants (modules `contestant_*.py` beside this file), by the process that they run in.
Out: per contestant the ratio of its time to ours in the same round, and its CPU seconds. All begin with the same
parameters and see the same batches; a contestant whose losses of the first ten steps differ from ours computes
something else, and the race is void.

Of two processes of one program one can be 2 % slower than the other for as long as it lives: so everyone starts several
times, and programs of one framework in one setting share a process.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nightjar_models.errors import NightjarError

STARTS, ROUNDS = 4, 8  # rounds of each start
STEPS, BLOCK_S = 8, 0.5  # a block has at least so many steps, and lasts about as long
SAME_LOSS = 1e-4  # float32, another order of sums: 5e-6 was seen in ten steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a contestant did.

    Attributes:
        wall_ratio: its wall time to ours, median over rounds.
        cpu_ratio: its CPU time to ours, median over rounds.
        wall_s: wall time of a step, median over rounds.
        cpu_s: CPU time of a step on all cores, median over rounds.
    """

    wall_ratio: float
    cpu_ratio: float
    wall_s: float
    cpu_s: float


class Process:
    """A process that runs steps of its contestants when told."""

    def __init__(self, names: Sequence[str], preset: str, data: Path) -> None:
        self._names = names
        command = [sys.executable, "-m", "tests.bench.models.worker", preset, str(data), *names]
        environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, bufsize=1
        )
        self.first_losses: dict[str, list[float]] = self._read()

    def run(self, name: str, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds of a step of a contestant."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {steps}\n")
        answer = self._read()
        return answer["wall_s"] / steps, answer["cpu_s"] / steps

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            who = " or ".join(self._names)
            raise NightjarError(f"{who} ended with {self._process.wait()}; its own message is above.")
        answer: dict[str, Any] = json.loads(line)
        return answer


def race(
    preset: str, batches: Sequence[dict[str, np.ndarray]], processes: Sequence[Sequence[str]]
) -> dict[str, Result]:
    """Runs all contestants in turns; the first one of the first process is ours."""
    names = [name for process in processes for name in process]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        np.savez(path, **{f"{number}.{key}": one for number, batch in enumerate(batches) for key, one in batch.items()})  # type: ignore[arg-type]
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for start in range(STARTS):
            run_rounds(preset, [Process(started, preset, path) for started in processes], times)
            print(f"{preset}: {start + 1} of {STARTS} starts are done", file=sys.stderr, flush=True)
    ours = times[names[0]]
    return {
        name: Result(
            wall_ratio=statistics.median(its[0] / our[0] for its, our in zip(found, ours, strict=True)),
            cpu_ratio=statistics.median(its[1] / our[1] for its, our in zip(found, ours, strict=True)),
            wall_s=statistics.median(wall for wall, _ in found),
            cpu_s=statistics.median(cpu for _, cpu in found),
        )
        for name, found in times.items()
    }


def run_rounds(preset: str, processes: Sequence[Process], times: dict[str, list[tuple[float, float]]]) -> None:
    """Adds the rounds of one start to `times`, and ends the processes."""
    runs = {name: process for process in processes for name in process.first_losses}
    ours = next(iter(runs))
    expected = runs[ours].first_losses[ours]
    for name, process in runs.items():
        for number, (its, our) in enumerate(zip(process.first_losses[name], expected, strict=True)):
            if abs(its - our) > SAME_LOSS:
                found = f"{name}: the loss of step {number} is {its}, ours {our}"
                raise NightjarError(f"{preset}: {found}: they do not compute the same.")
        process.run(name, STEPS)
    steps = max(STEPS, round(BLOCK_S / runs[ours].run(ours, STEPS)[0]))
    drawn = len(times[ours])  # an order of its own for each start
    shuffled = random.Random(drawn)  # after some contestants a core is slower than after others
    for _ in range(ROUNDS):
        for name in shuffled.sample(list(runs), len(runs)):
            times[name].append(runs[name].run(name, steps))
    for process in processes:
        process.end()
