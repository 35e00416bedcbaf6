"""Derivatives of the losses of the seven workloads: forward mode and Hessians, against reverse mode and differences.

A layer with a gradient of its own may have no forward mode, which nothing that only trains would notice: `jax.jvp` then
raises a TypeError. Of the Hessian each test takes its product with a direction.

Source: docs.jax.dev, "The Autodiff Cookbook": a Hessian-vector product is the `jvp` of a gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from nightjar_models.architectures import diffusion, gpt, llama, moe, t5, vae, vit
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    LlamaConfig,
    MoEConfig,
    T5Config,
    VAEConfig,
    ViTConfig,
)

GPT = GPTConfig(vocabulary=19, length=7, width=16, layers=1, heads=4, feed_forward=24)
LLAMA = LlamaConfig(vocabulary=19, length=7, width=16, layers=1, heads=4, groups=2, feed_forward=24)
MOE = MoEConfig(
    vocabulary=19, length=8, width=16, layers=1, heads=4, groups=2, feed_forward=24, experts=4, routing_length=4
)
T5 = T5Config(
    vocabulary=19, length=9, target_length=6, width=16, layers=1, heads=2, head_width=8, feed_forward=24,
    buckets=8, farthest=7,
)  # fmt: skip
VIT = ViTConfig(patch=4, width=16, layers=1, heads=4, feed_forward=24, smoothing=0.1)
VAE = VAEConfig(image=4, feed_forward=12, latent=3)
UNET = DiffusionConfig(
    image=4, width=8, levels=1, blocks=1, heads=2, text_width=8, text_layers=1, text_length=5, unconditional=0.3
)
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "gpt": (gpt.GPT, gpt.measure, GPT),
    "llama": (llama.Llama, llama.measure, LLAMA),
    "moe": (moe.MoE, moe.measure, MOE),
    "t5": (t5.T5, t5.measure, T5),
    "vit": (vit.ViT, vit.measure, VIT),
    "vae": (vae.VAE, vae.measure, VAE),
    "diffusion": (diffusion.UNet, diffusion.measure, UNET),
}
STEP = 0.01  # of a difference, along a direction of length one
QUICK = {"xla_backend_optimization_level": 0}  # these programs take far longer to compile than to run
# Sums of some thousand float32 products in another order.
ORDER = 2e-6
# A difference of two losses near 3, each good to 3e-7, over 2 STEP, and what the fourth power of STEP leaves.
DIFFERENCE = 2e-4

Vector = npt.NDArray[np.float64]


class Derivatives(NamedTuple):
    """JAX's loss and its derivative at a point, along a direction."""

    value: float
    slope: float
    gradient: Vector
    product: Vector


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss of all parameters in one vector, a point and two directions of length one.

    Attributes:
        forward: value and slope, by forward mode alone.
        both: forward mode of value and gradient.
    """

    forward: Callable[[Vector, Vector], Any]
    both: Callable[[Vector, Vector], Any]
    point: Vector
    first: Vector
    second: Vector

    def derive(self, point: Vector, along: Vector) -> Derivatives:
        """All of it, in float64 behind the program."""
        (value, gradient), (slope, product) = self.both(point, along)
        return Derivatives(float(value), float(slope), np.float64(gradient), np.float64(product))


def make_batch(name: str) -> dict[str, Any]:
    random = np.random.default_rng(1)
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
    match name:
        case "t5":
            source, target = (random.integers(1, 19, (4, size)) for size in (9, 6))
            source[0, 5:] = target[0, 4:] = t5.PADDING
            return {"source": jnp.asarray(source), "target": jnp.asarray(target)}
        case "vit":
            return {"image": jnp.asarray(random.normal(size=(4, 8, 8, 1)), jnp.float32), "label": jnp.arange(4)}
        case "vae":
            return {"image": jnp.asarray(random.normal(size=(4, 4, 4)), jnp.float32), "key": keys}
        case "diffusion":
            image = jnp.asarray(random.normal(size=(4, 4, 4, 1)), jnp.float32)
            return {"image": image, "key": keys, "text": jnp.asarray(random.integers(0, 128, (4, 5)))}
        case _:
            length = MODELS[name][2].length
            return {"tokens": jnp.asarray(random.integers(0, 19, (4, length + 1)))}


def draw(path: Any, leaf: Any) -> Any:
    """Parameters that all differ, biases and scales too, of a size at which activations are near one."""
    values, kind = np.random.default_rng(leaf.size).normal(size=leaf.shape), getattr(path[-1], "key", None)
    if kind == "kernel":
        values /= math.sqrt(math.prod(leaf.shape[:-1]))
    elif kind == "scale":
        values = 1 + 0.3 * values
    return np.asarray(values, np.float32)


@pytest.fixture(params=MODELS, scope="module")
def loss(request: pytest.FixtureRequest) -> Loss:
    build, measure, sizes = MODELS[request.param]
    batch = make_batch(request.param)
    model = nnx.eval_shape(lambda: build(sizes, Compute(), rngs=nnx.Rngs(0)))
    graph, parameters, others = nnx.split(model, nnx.Param, ...)
    others = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), others)
    drawn = jax.tree.map_with_path(draw, nnx.to_pure_dict(parameters))
    point, unravel = ravel_pytree(drawn)

    def value(vector: Any) -> Any:
        nnx.replace_by_pure_dict(parameters, unravel(vector))
        scores = measure(nnx.merge(graph, parameters, others), batch)
        return jnp.average(scores["loss"], weights=scores.get("mask"))

    def differentiate(function: Any) -> Callable[[Vector, Vector], Any]:
        jitted = jax.jit(lambda at, along: jax.jvp(function, (at,), (along,)), compiler_options=QUICK)
        return lambda at, along: jitted(np.float32(at), np.float32(along))

    forward, both = differentiate(value), differentiate(jax.value_and_grad(value))
    at = np.float64(point)
    (_, gradient), _ = both(at, at)
    noise = scale(np.random.default_rng(3).normal(size=at.size))
    return Loss(forward, both, at, scale(scale(np.float64(gradient)) + noise), noise)


def scale(vector: Vector) -> Vector:
    return vector / np.linalg.norm(vector)


def differ(function: Callable[[Vector], Any], point: Vector, along: Vector) -> Any:
    """The central difference along a direction, with Richardson's extrapolation: its error falls with STEP**4."""

    def central(step: float) -> Any:
        return (function(point + step * along) - function(point - step * along)) / (2 * step)

    return (4 * central(STEP) - central(2 * STEP)) / 3


def test_forward_mode(loss: Loss) -> None:
    value, slope = map(float, loss.forward(loss.point, loss.first))
    derived = loss.derive(loss.point, loss.first)
    assert abs(slope) > 0.1  # or the tolerances would mean little
    assert value == pytest.approx(derived.value, rel=1e-6)
    assert slope == pytest.approx(derived.gradient @ loss.first, rel=ORDER)
    numeric = differ(lambda point: float(loss.forward(point, loss.first)[0]), loss.point, loss.first)
    assert slope == pytest.approx(numeric, rel=DIFFERENCE)


def test_hessian(loss: Loss) -> None:
    product = loss.derive(loss.point, loss.first).product
    other = loss.derive(loss.point, loss.second).product
    size = np.linalg.norm(product)
    assert size > 0.1
    assert product @ loss.second == pytest.approx(other @ loss.first, abs=ORDER * size)  # it is symmetric
    numeric = differ(lambda point: loss.derive(point, loss.first).gradient, loss.point, loss.first)
    assert np.linalg.norm(product - numeric) < DIFFERENCE * size
