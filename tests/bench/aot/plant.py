"""Breaks one thing in the models, then runs `nightjar-models`: `python -m tests.bench.aot.plant FAULT compile ...`."""

import os
import sys
from importlib import import_module
from typing import Any


def drop_a_sharding() -> None:
    """The parameters are no longer split over fsdp: every device holds all of them."""
    nnx: Any = import_module("flax.nnx")
    plain = nnx.with_partitioning

    def split(initializer: Any, axes: Any, *others: Any, **more: Any) -> Any:
        return plain(initializer, tuple(None if axis == "fsdp" else axis for axis in axes), *others, **more)

    nnx.with_partitioning = split


def drop_a_constraint() -> None:
    """Scanned layers no longer say that the examples of their stream stay split."""
    stack: Any = import_module("nightjar_models.architectures.stack")
    stack.keep_batch_split = lambda x: x


def accumulate_in_f32() -> None:
    """Feed-forward products of bfloat16 give float32, which is what they then write to memory."""
    import jax
    import jax.numpy as jnp

    layers: Any = import_module("nightjar_models.architectures.layers")

    def wide(x: Any, w: Any, dimensions: Any, **_: Any) -> Any:
        product = jax.lax.dot_general(x, w, dimensions, preferred_element_type=jnp.float32)
        return jax.lax.optimization_barrier(product)  # type: ignore[no-untyped-call]

    layers.make_dot_general = lambda compute: wide


FAULTS = (drop_a_sharding, drop_a_constraint, accumulate_in_f32)
PLANTS = {plant.__name__: plant for plant in FAULTS}


def main() -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    PLANTS[sys.argv.pop(1)]()
    from nightjar_models.cli import main as run

    run()


if __name__ == "__main__":
    main()
