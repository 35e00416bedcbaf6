"""A training step of ours against Flax's layers in the loops of its documentation and PyTorch, in one run.

`bare` is no rival: it is our program in a loop of three lines, and says what the rest of ours costs.
"""

from __future__ import annotations

import itertools

import numpy as np

from nightjar_models.data.pipeline import train_batches
from nightjar_models.presets import find_preset
from nightjar_models.tasks import find_task
from tests.bench.models.race import race
from tests.bench.models.worker import KEPT
from tests.bench.table import Row

PRESETS = ("gpt_tiny", "vit_tiny")
LOOPS = {
    "flax:nnx": "Flax's layers, nnx.jit and nnx.Optimizer",
    "flax:state": "Flax's layers, jax.jit over a split state",
    "torch:eager": "PyTorch eager",
    "torch:compile": "PyTorch torch.compile",
}
# As they come, and in a process that keeps freed memory as ours does
RIVALS = LOOPS | {name + KEPT: f"{title}, freed memory kept" for name, title in LOOPS.items()}
OURS = "ours" + KEPT  # as the command `train` runs it
BARE = "flax:bare" + KEPT
BARE_GOAL = 1.03  # as the trainer's
BESIDE = [OURS, BARE, "flax:nnx" + KEPT, "flax:state" + KEPT]  # in one process
PROCESSES = [BESIDE, *([name] for name in RIVALS if name not in BESIDE)]
BATCHES = 8


def measure() -> list[Row]:
    """Races every preset."""
    rows = []
    for preset in PRESETS:
        config = find_preset(preset)()
        feed = train_batches(find_task(config).read(), config.batch_size, seed=0)
        batches = [{k: np.asarray(v) for k, v in one.items()} for one in itertools.islice(feed, BATCHES)]
        found = race(preset, batches, PROCESSES)
        ours = found[OURS]
        bare = f"{preset}: step time over jax.jit over our own model's split state"
        rows.append(Row(name=bare, ours=1 / found[BARE].wall_ratio, goal=BARE_GOAL, unit="x wall"))
        for name, title in RIVALS.items():
            its = found[name]
            rows += [
                Row(name=f"{preset}: step time over {title}", ours=1 / its.wall_ratio, goal=1.0, unit="x wall"),
                Row(
                    name=f"{preset}: CPU time of a step",
                    ours=1000 * ours.cpu_s,
                    unit="ms",
                    rival=title,
                    rival_value=1000 * its.cpu_s,
                ),
            ]
    return rows
