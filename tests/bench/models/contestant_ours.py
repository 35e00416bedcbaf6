"""Ours: the step as the trainer compiles it, from a NumPy batch to the loss on the host.

The batch is moved by the call of the step, as the rivals do it; the trainer moves the next one while a step computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nightjar_models.mesh import MeshShape
from nightjar_models.presets import find_preset
from nightjar_models.sharding import make_mesh
from nightjar_models.step import make_program
from nightjar_models.tasks import find_task
from nightjar_models.train import wait_for


def make(preset: str) -> Callable[[Any], float]:
    """The step of a preset."""
    config = find_preset(preset)()
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    state, compiled = program.initialize(0), None

    def step(batch: Any) -> float:
        nonlocal state, compiled
        if compiled is None:
            compiled = program.train_step.lower(program.state, batch).compile()
        state, loss = compiled(state, batch)
        return wait_for(loss)

    return step
