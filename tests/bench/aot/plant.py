"""Breaks one thing in the models, then runs `nightjar-models`: `python -m tests.bench.aot.plant FAULT compile ...`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any


def drop_a_sharding() -> None:
    """The parameters are no longer split over fsdp: every device holds all of them."""
    from nightjar_models import sharding

    sharding.RULES["width"] = None  # type: ignore[assignment,unused-ignore]


def accumulate_in_f32() -> None:
    """Feed-forward products of bfloat16 give float32, which is what they then write to memory."""
    import jax
    import jax.numpy as jnp

    def wide(x: Any, weights: Any) -> Any:
        product = jnp.matmul(x, weights, preferred_element_type=jnp.float32)
        return jax.lax.optimization_barrier(product)  # type: ignore[no-untyped-call]

    def gated(x: Any, w_gate: Any, w_in: Any, w_out: Any) -> Any:
        return wide((jax.nn.silu(wide(x, w_gate)) * wide(x, w_in)).astype(x.dtype), w_out).astype(x.dtype)

    models: list[Any] = [import_module(f"nightjar_models.models.{name}") for name in ("layers", "llama")]
    for module in models:
        module.gated_feed_forward = gated


PLANTS = {plant.__name__: plant for plant in (drop_a_sharding, accumulate_in_f32)}


def main() -> None:
    """Plants the fault that the first argument names."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    PLANTS[sys.argv.pop(1)]()
    from nightjar_models.cli import main as run

    run()


if __name__ == "__main__":
    main()
