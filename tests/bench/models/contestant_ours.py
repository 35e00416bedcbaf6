"""Ours: the step as the trainer compiles it, from a NumPy batch to the loss on the host.

The batch is moved by the call of the step, as the rivals do it and the trainer on a single CPU.
"""

from __future__ import annotations

from typing import Any

import jax

from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.training.step import make_program
from nightjar_models.training.tasks import find_task
from nightjar_models.training.train import wait_for


class Step:
    """The step of a preset."""

    def __init__(self, preset: str) -> None:
        config = find_preset(preset)()
        self.program = make_program(config, find_task(config), make_mesh(MeshShape()))
        self.state = self.program.initialize(0)
        self.compiled: jax.stages.Compiled | None = None

    def __call__(self, batch: Any) -> float:
        if self.compiled is None:
            self.compiled = self.lower(batch).compile()
        self.state, loss = self.compiled(self.state, batch)
        return wait_for(loss)

    def lower(self, batch: Any) -> jax.stages.Lowered:
        """What the trainer compiles."""
        lowered: jax.stages.Lowered = self.program.train_step.lower(self.program.state, batch)
        return lowered


make = Step
