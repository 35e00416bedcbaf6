"""Trains GPT tiny in blocks of steps, every other one traced as `capture` traces it; prints the ratio of their times.

In: a folder for the traces. Out: one JSON line: the ratio of each traced block's median step to that of the untraced
blocks before and after it. Run as a program of its own, since JAX must be new.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import jax

from nightjar_models.data.pipeline import held_out_batches
from nightjar_models.mesh import MeshShape
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.sharding import make_mesh, put_batch
from nightjar_models.step import make_program
from nightjar_models.tasks import find_task
from nightjar_models.train import compile_step, run_step
from nightjar_profiling.capture.hook.tracer import Tracer

BLOCKS, STEPS = 13, 12


def main(folder: Path) -> None:
    """Times the blocks."""
    config = gpt_tiny()
    task = find_task(config)
    program = make_program(config, task, make_mesh(MeshShape()))
    batch = put_batch(held_out_batches(task.read(), config.batch_size)[0], program.batch)
    state = program.initialize(0)
    step, _ = compile_step(program, batch)
    medians = []
    for block in range(BLOCKS):
        tracer = Tracer(jax.profiler, folder / str(block), None)
        if block % 2:
            (folder / str(block)).mkdir()
            tracer.start()
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            state, _ = run_step(step, state, batch)
            times.append(time.perf_counter() - begin)
        if block % 2:
            tracer.stop()
        tracer.disarm()
        medians.append(statistics.median(times))
    ratios = [medians[n] / statistics.mean((medians[n - 1], medians[n + 1])) for n in range(1, BLOCKS - 1, 2)]
    print(json.dumps({"ratios": ratios, "step_s": statistics.median(medians[::2])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
