"""What does the trainer cost over the bare loop of its idiom? Both run in one process, in turns, on the same model.

The trainer calls back after each step: there, after every second step of its own, two bare steps are run on a batch
that lies on the device already; of each two the second is timed. The trainer's time is from one call back to the next:
fetching and placing the batch, the step, waiting for the loss, and keeping the history. Each is compared with the bare
step beside it, as what else a machine does lasts longer than a step; the median of the ratios counts.

Of `vit_tiny`, four processes said 0.002 to 0.032: each preset starts three times, and the median counts.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from nightjar_models.data.pipeline import train_batches
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh, use_mesh
from nightjar_models.presets import PRESETS, find_preset
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from nightjar_models.training.train import train
from tests.bench.table import Row

STARTS, ROUNDS = 3, 100  # rounds of each start
GOAL = 0.03
WAIT_GOAL = 0.02


class Bare:
    """The jitted step and nothing else."""

    def __init__(self, preset: str) -> None:
        config = find_preset(preset)()
        task = find_task(config)
        program = make_program(config, task, make_mesh(MeshShape()))
        batch = next(train_batches(task.read(), config.batch_size, seed=0))
        self.batch = jax.device_put(dict(batch), program.batch)
        self.state = program.initialize(1)
        self.step = program.bind(program.lower(self.batch).compile())
        self.mesh = program.mesh

    def run(self) -> None:
        with use_mesh(self.mesh):
            self.state, loss = self.step(self.state, self.batch)
        jax.block_until_ready(loss)  # type: ignore[no-untyped-call]


def list_goals() -> list[str]:
    tiny = [preset for preset in PRESETS if preset.endswith("_tiny")]
    what = ("trainer over the bare loop", "share of a step spent waiting for data")
    return [f"{preset}: {name}" for preset in tiny for name in what]


def measure() -> list[Row]:
    return [row for preset in PRESETS if preset.endswith("_tiny") for row in measure_preset(preset)]


def measure_preset(preset: str) -> list[Row]:
    """The overhead of the trainer, and how long it waits for data: the medians of several processes."""
    command = [sys.executable, "-m", "tests.bench.models.trainer", preset]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    starts = [subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ) for _ in range(STARTS)]
    overheads, waits = zip(*(json.loads(start.stdout) for start in starts), strict=True)
    print(f"{preset}: overhead {overheads}, waiting {waits}", file=sys.stderr, flush=True)
    return [
        Row(f"{preset}: trainer over the bare loop", statistics.median(overheads), goal=GOAL),
        Row(f"{preset}: share of a step spent waiting for data", statistics.median(waits), goal=WAIT_GOAL),
    ]


def compare(preset: str) -> tuple[float, float]:
    """The same, of this process."""
    bare = Bare(preset)
    trainer: list[float] = []
    alone: list[float] = []
    before = [0.0]

    def called(step: int, _: float) -> None:
        if step % 2 == 0:
            trainer.append(time.perf_counter() - before[0])
            bare.run()
            begin = time.perf_counter()
            bare.run()
            alone.append(time.perf_counter() - begin)
        before[0] = time.perf_counter()

    config = dataclasses.replace(find_preset(preset)(), steps=2 * ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        run = train(config, seed=0, mesh=MeshShape(), out=Path(folder), progress=called)
    overhead = float(np.median(np.divide(trainer, alone))) - 1
    wait = next(sample for sample in run.samples if sample.name == "input_wait")
    return overhead, float(wait.values[0])


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1])))
