"""`nightjar-models` with one fault: `python faulty_trainer.py FAULT ARGUMENT...`; a fault is a patch or a setting."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx.nn import normalization
from jax._src.nn import functions

from nightjar_models.training import optimizer
from tests.bench.gate.planted.wrong_layers import patch_distances, patch_places


def stop_bias_correction() -> Any:
    """Adam's correction stays that of step 100."""
    right = optax.tree.bias_correction

    def correct(moment: Any, decay: float, count: Any) -> Any:
        return right(moment, decay, jnp.minimum(count, 100))

    return mock.patch.object(optax.tree, "bias_correction", correct)


def speed_up() -> Any:
    """A learning rate that is one percent higher."""
    right = optimizer.make_schedule

    def schedule(config: Any) -> Any:
        return lambda step: 1.01 * right(config)(step)

    return mock.patch.object(optimizer, "make_schedule", schedule)


def round_statistics() -> Any:
    """Means and variances of norms that are rounded to bfloat16."""

    def compute(x: Any, axes: Any, *_: Any, **__: Any) -> Any:
        x = x.astype(jnp.bfloat16)
        mean = x.mean(axes)
        return mean, jnp.maximum((x * x).mean(axes) - mean * mean, 0)

    return mock.patch.object(normalization, "_compute_stats", compute)


def round_softmax() -> Any:
    """Attention's shares computed in bfloat16."""
    right = functions.softmax

    def softmax(x: Any, **options: Any) -> Any:
        return right(x.astype(jnp.bfloat16), **options)

    return mock.patch.object(functions, "softmax", softmax)


def warm_up() -> Any:
    """Scores of attention that are a tenth smaller."""
    right = nnx.dot_product_attention

    def attend(query: Any, *others: Any, **options: Any) -> Any:
        return right(query * 0.9, *others, **options)

    return mock.patch.object(nnx, "dot_product_attention", attend)


PATCHES: dict[str, Callable[[], Any]] = {
    "momentum": lambda: mock.patch.object(optimizer, "MOMENTUM", 0.89),
    "bias_correction": stop_bias_correction,
    "epsilon": lambda: mock.patch.object(optax, "adamw", partial(optax.adamw, eps=1e-6)),
    "decay": lambda: mock.patch.object(optimizer, "find_decayed", None),
    "learning_rate": speed_up,
    "distances": patch_distances,
    "places": patch_places,
    "softmax": round_softmax,
    "norms": round_statistics,
    "temperature": warm_up,
}

if __name__ == "__main__":
    fault = sys.argv.pop(1)
    from nightjar_models.cli import main

    if "=" in fault:
        sys.argv += ["--set", fault]
        main()
    else:
        with PATCHES[fault]():
            main()
