"""Which losses has each model on each mesh? Run by the tests in a process of its own, which prints one JSON object.

Each run is three steps of a tiny model on random data: the first loss shows the forward pass, the others the gradients.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from nightjar_models.config import TrainConfig, override
from nightjar_models.errors import InputError
from nightjar_models.facts import read_facts
from nightjar_models.mesh import parse_mesh
from nightjar_models.presets import find_preset
from nightjar_models.sharding import make_mesh, put_batch
from nightjar_models.step import make_program
from nightjar_models.tasks import find_task

BATCH, STEPS = 16, 3
TINY = ["model.width=16", "model.feed_forward=32", "model.heads=2", f"batch_size={BATCH}"]
SIZES = {
    "gpt_tiny": [*TINY, "model.length=16", "model.layers=2"],
    "llama_tiny": [*TINY, "model.length=16", "model.layers=2", "model.groups=2"],
    "vit_tiny": [*TINY, "model.layers=2"],
}


def tiny(preset: str, *settings: str) -> TrainConfig:
    """The preset at its smallest, with a learning rate that moves it within three steps."""
    return override(find_preset(preset)(), [*SIZES[preset], "warmup_steps=1", *settings])


def make_batch(config: TrainConfig) -> dict[str, Any]:
    """Random data of the shapes of the task's own."""
    rng = np.random.default_rng(0)
    model: Any = config.model
    if config.workload.startswith("vit"):
        images = rng.normal(size=(BATCH, model.image, model.image)).astype(np.float32)
        return {"image": images, "label": rng.integers(0, 10, BATCH, dtype=np.int32)}
    return {"tokens": rng.integers(0, model.vocabulary, (BATCH, model.length + 1), dtype=np.int32)}


def run(preset: str, mesh: str, *settings: str) -> dict[str, Any]:
    """The losses of three steps, and the collectives of one; or what does not fit."""
    config = tiny(preset, *settings)
    try:
        program = make_program(config, find_task(config), make_mesh(parse_mesh(mesh)))
        batch = put_batch(make_batch(config), program.batch)
        step = program.train_step.lower(program.state, batch).compile()
    except InputError as error:
        return {"error": str(error)}
    state, losses = program.initialize(0), []
    for _ in range(STEPS):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return {"losses": losses, "collectives": read_facts("train_step", step)["collectives"]}


if __name__ == "__main__":
    print(json.dumps({" ".join(case): run(*case) for case in json.load(sys.stdin)}))
