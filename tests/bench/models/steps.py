"""A training step of ours against the loops of Flax's documentation and against PyTorch, in one run.

Flax's loops run a model of Flax's own layers, and ours. Where such a loop compiles the very program that our step is,
which is looked up in the run, it is the bare jitted step: no more than a trainer's overhead may lie between the two.
"""

from __future__ import annotations

import itertools

import numpy as np

from nightjar_models.data.pipeline import train_batches
from nightjar_models.presets import find_preset
from nightjar_models.training.tasks import find_task
from tests.bench.models import trainer
from tests.bench.models.program import find_same
from tests.bench.models.race import race
from tests.bench.models.worker import KEPT
from tests.bench.table import Row

PRESETS = ("gpt_tiny", "vit_tiny")
LOOPS = {
    "flax:nnx": "Flax's layers, nnx.jit and nnx.Optimizer",
    "flax:state": "Flax's layers, jax.jit over a split state",
    "flax:our-nnx": "our model, nnx.jit and nnx.Optimizer",
    "flax:our-state": "our model, jax.jit over a split state",
    "torch:eager": "PyTorch eager",
    "torch:compile": "PyTorch torch.compile",
}
# As they come, and in a process that keeps freed memory as ours does
RIVALS = LOOPS | {name + KEPT: f"{title}, freed memory kept" for name, title in LOOPS.items()}
OURS = "ours" + KEPT  # as the command `train` runs it
BESIDE = [OURS, *(name + KEPT for name in LOOPS if name.startswith("flax:"))]  # in one process
PROCESSES = [BESIDE, *([name] for name in RIVALS if name not in BESIDE)]
BATCHES = 8


def list_goals() -> list[str]:
    """The names of this part's goals."""
    return [f"{preset}: step time over {title}" for preset in PRESETS for title in RIVALS.values()]


def measure() -> list[Row]:
    """Races every preset."""
    rows = []
    for preset in PRESETS:
        config = find_preset(preset)()
        feed = train_batches(find_task(config).read(), config.batch_size, seed=0)
        batches = [{k: np.asarray(v) for k, v in one.items()} for one in itertools.islice(feed, BATCHES)]
        bare = {"flax:" + style for style in find_same(preset)}
        found = race(preset, batches, PROCESSES)
        ours = found[OURS]
        for name, title in RIVALS.items():
            its = found[name]
            goal, what = 1.0, title
            if name.removesuffix(KEPT) in bare:
                goal, what = 1.0 + trainer.GOAL, f"{title} (the same program: the bare jitted step)"
            rows += [
                Row(name=f"{preset}: step time over {what}", ours=1 / its.wall_ratio, goal=goal, unit="x wall"),
                Row(
                    name=f"{preset}: CPU time of a step",
                    ours=1000 * ours.cpu_s,
                    unit="ms",
                    rival=title,
                    rival_value=1000 * its.cpu_s,
                ),
            ]
    return rows
