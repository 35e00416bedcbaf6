"""Flax saves a checkpoint by Orbax (google/flax#4015)."""

import tempfile
from importlib import import_module

import numpy as np

orbax = import_module("orbax.checkpoint")  # as the release of the rung has it
with tempfile.TemporaryDirectory() as folder:
    import_module("flax.training.checkpoints").save_checkpoint(
        ckpt_dir=folder, target={"w": np.ones(3)}, step=0, orbax_checkpointer=orbax.PyTreeCheckpointer()
    )
