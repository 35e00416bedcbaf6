"""Who takes the least time for a training step? Contestants run in processes of their own, block by block in turn.

In: a preset and the names of contestants (modules `contestant_*.py` beside this file). Out: per contestant the ratio of
its time to ours in the same round, and its CPU seconds. All begin with the same parameters and see the same batches; a
contestant whose first loss differs from ours computes something else, and the race is void.

Everyone starts several times: of two processes of one program one can be 2 % slower than the other for as long as it
lives.
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

import numpy as np

from nightjar_models.errors import NightjarError

STARTS, ROUNDS = 4, 8  # rounds of each start
STEPS, BLOCK_S = 8, 0.5  # a block has at least so many steps, and lasts about as long
SAME_LOSS = 1e-3  # float32, another order of sums: 2e-6 was seen


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


class Contestant:
    """A process that runs steps when told."""

    def __init__(self, name: str, preset: str, data: Path) -> None:
        self.name, self.preset = name, preset
        command = [sys.executable, "-m", "tests.bench.models.worker", name, preset, str(data)]
        environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, bufsize=1
        )
        self.first_loss: float = self._read()["loss"]

    def run(self, steps: int) -> tuple[float, float]:
        """Wall and CPU seconds of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        answer = self._read()
        return answer["wall_s"] / steps, answer["cpu_s"] / steps

    def end(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NightjarError(f"{self.name} ended with {self._process.wait()}; its own message is above.")
        answer: dict[str, float] = json.loads(line)
        return answer


def race(preset: str, batches: Sequence[dict[str, np.ndarray]], names: Sequence[str]) -> dict[str, Result]:
    """Runs all contestants in turns; the first one is ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        np.savez(path, **{f"{number}.{key}": one for number, batch in enumerate(batches) for key, one in batch.items()})  # type: ignore[arg-type]
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for start in range(STARTS):
            run_rounds([Contestant(name, preset, path) for name in names], times)
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


def run_rounds(contestants: Sequence[Contestant], times: dict[str, list[tuple[float, float]]]) -> None:
    """Adds the rounds of one start to `times`, and ends the processes."""
    for one in contestants:
        if abs(one.first_loss - contestants[0].first_loss) > SAME_LOSS:
            found = f"{one.name}: the first loss is {one.first_loss}, ours {contestants[0].first_loss}"
            raise NightjarError(f"{one.preset}: {found}: they do not compute the same.")
        one.run(STEPS)
    steps = max(STEPS, round(BLOCK_S / contestants[0].run(STEPS)[0]))
    drawn = len(times[contestants[0].name])  # an order of its own for each start
    shuffled = random.Random(drawn)  # after some contestants a core is slower than after others
    for _ in range(ROUNDS):
        for one in shuffled.sample(contestants, len(contestants)):
            times[one.name].append(one.run(steps))
    for one in contestants:
        one.end()
