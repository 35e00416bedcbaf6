"""What does the trainer cost over the bare jitted step? Both run in one process, in turns, on the same model.

The trainer calls back after each step: there, after every block of its own steps, a block of bare steps is run on a
batch that lies on the device already. The trainer's time is from one call back to the next: fetching and placing the
batch, the step, waiting for the loss, and keeping the history.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import jax

from nightjar_models.data.pipeline import train_batches
from nightjar_models.mesh import MeshShape
from nightjar_models.presets import PRESETS, find_preset
from nightjar_models.sharding import make_mesh, put_batch
from nightjar_models.step import make_program
from nightjar_models.tasks import find_task
from nightjar_models.train import train
from tests.bench.table import Row

BLOCKS, STEPS = 9, 8
GOAL = 0.03
WAIT_GOAL = 0.02


class Bare:
    """The jitted step and nothing else."""

    def __init__(self, preset: str) -> None:
        config = find_preset(preset)()
        task = find_task(config)
        program = make_program(config, task, make_mesh(MeshShape()))
        batch = next(train_batches(task.read(), config.batch_size, seed=0))
        self.batch = put_batch(batch, program.batch)
        self.state = program.initialize(1)
        self.step = program.train_step.lower(program.state, self.batch).compile()

    def run(self) -> None:
        """One step."""
        self.state, loss = self.step(self.state, self.batch)
        jax.block_until_ready((self.state, loss))  # type: ignore[no-untyped-call]


def measure() -> list[Row]:
    """Every tiny preset."""
    return [row for preset in PRESETS if preset.endswith("_tiny") for row in measure_preset(preset)]


def measure_preset(preset: str) -> list[Row]:
    """The overhead of the trainer, and how long it waits for data."""
    bare = Bare(preset)
    bare.run()
    trainer: list[list[float]] = [[]]
    alone: list[list[float]] = []
    before = [0.0]

    def called(step: int, _: float) -> None:
        trainer[-1].append(time.perf_counter() - before[0])
        if step % STEPS == 0:
            alone.append([])
            for _number in range(STEPS):
                begin = time.perf_counter()
                bare.run()
                alone[-1].append(time.perf_counter() - begin)
            trainer.append([])
        before[0] = time.perf_counter()

    config = dataclasses.replace(find_preset(preset)(), steps=(BLOCKS + 1) * STEPS)
    with tempfile.TemporaryDirectory() as folder:
        run = train(config, seed=0, mesh=MeshShape(), out=Path(folder), progress=called)
    ratios = [
        statistics.median(ours) / statistics.median(its)
        for ours, its in zip(trainer[1 : BLOCKS + 1], alone[1:], strict=True)  # the first block holds the compilation
    ]
    wait = next(sample for sample in run.samples if sample.name == "input_wait")
    return [
        Row(name=f"{preset}: trainer over the bare jitted step", ours=statistics.median(ratios) - 1, goal=GOAL),
        Row(name=f"{preset}: share of a step spent waiting for data", ours=wait.values[0], goal=WAIT_GOAL),
    ]
