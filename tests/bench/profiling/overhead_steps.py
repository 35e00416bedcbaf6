"""Trains a tiny workload in blocks of steps, every other one traced as `capture` traces it; prints the ratio of times.

In: a folder for the traces, and a preset. Out: one JSON line: the ratio of each traced block's median step to that of
the untraced blocks before and after it. Run as a program of its own, since JAX must be new.
"""

import json
import shutil
import statistics
import sys
import time
from pathlib import Path

import jax

from nightjar_models.data.pipeline import held_out_batches
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh, put_batch
from nightjar_models.presets import find_preset
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from nightjar_models.training.train import compile_step, wait_for
from nightjar_profiling.capture.hook.tracer import Tracer

BLOCKS, BLOCK_S = 21, 0.3
FEWEST_STEPS, MOST_STEPS = 12, 200


def main(folder: Path, preset: str) -> None:
    config = find_preset(preset)()
    task = find_task(config)
    program = make_program(config, task, make_mesh(MeshShape()))
    batch = put_batch(held_out_batches(task.read(), config.batch_size)[0], program.batch)
    state = program.initialize(0)
    compiled, _ = compile_step(program, batch)
    step = program.bind(compiled)
    medians: list[float] = []
    steps = FEWEST_STEPS
    for block in range(-1, BLOCKS):  # the first, number -1, tells how many steps a block has
        traced = block % 2 == 1 and block > 0
        tracer = Tracer(jax.profiler, folder / str(block), None)
        if traced:
            (folder / str(block)).mkdir()
            tracer.start()
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            state, loss = step(state, batch)
            wait_for(loss)
            times.append(time.perf_counter() - begin)
        if traced:
            tracer.stop()
            shutil.rmtree(folder / str(block))
        tracer.disarm()
        median = statistics.median(times)
        if block < 0:
            steps = min(max(FEWEST_STEPS, int(BLOCK_S / median)), MOST_STEPS)
        else:
            medians.append(median)
    ratios = [medians[n] / statistics.mean((medians[n - 1], medians[n + 1])) for n in range(1, BLOCKS - 1, 2)]
    print(json.dumps({"step_s": statistics.median(medians[::2]), "ratios": ratios}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
