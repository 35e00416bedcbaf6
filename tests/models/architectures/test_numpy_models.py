"""Each model at toy size computes what an implementation in plain NumPy computes with the same weights."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.architectures import diffusion, gpt, moe, t5, vae
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    MoEConfig,
    T5Config,
    VAEConfig,
)
from tests.models.architectures import numpy_layers, numpy_models

RNG = np.random.default_rng


def make(build: Callable[[], Any]) -> tuple[Any, Any]:
    """A model whose parameters all differ, biases and scales too, and the same parameters in float64."""
    rng = RNG(7)
    graph, state = nnx.split(nnx.eval_shape(build))

    def draw(path: Any, parameter: Any) -> NDArray[np.float32]:
        values, kind = rng.normal(size=parameter.shape), getattr(path[-1], "key", None)
        if kind == "kernel":
            values /= math.sqrt(math.prod(parameter.shape[:-1]))
        elif kind == "scale":
            values = 1 + 0.3 * values
        return np.asarray(values, np.float32)

    drawn = jax.tree.map_with_path(draw, nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, drawn))
    return nnx.merge(graph, state), jax.tree.map(np.float64, drawn)


def draw_tokens(*shape: int, vocabulary: int = 19) -> NDArray[np.int32]:
    return RNG(1).integers(0, vocabulary, shape).astype(np.int32)


def run(model: Any, *inputs: Any) -> Any:
    return nnx.jit(lambda model, *inputs: model(*inputs))(model, *inputs)


def assert_close(result: Any, expected: Any) -> None:
    """Float32 keeps seven digits, and a sum over a toy's width loses about one of them."""
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compute", [Compute(), Compute(scan_layers=True)], ids=["unrolled", "scanned"])
def test_gpt(compute: Compute) -> None:
    sizes = GPTConfig(vocabulary=19, length=7, width=16, layers=2, heads=4, feed_forward=24)
    (model, weights), tokens = make(lambda: gpt.GPT(sizes, compute, rngs=nnx.Rngs(0))), draw_tokens(3, 7)
    if compute.scan_layers:  # one array for all layers
        weights["blocks"] = {n: jax.tree.map(lambda x, n=n: x[n], weights["blocks"]) for n in range(sizes.layers)}
    assert_close(run(model, tokens), numpy_models.run_gpt(weights, tokens))


@pytest.mark.parametrize(
    ("compute", "capacity", "together"),
    [(Compute(), 0.75, 4), (Compute(experts="ragged"), 4.0, 8)],
    ids=["full experts", "sorted tokens find room"],
)
def test_moe(compute: Compute, capacity: float, together: int) -> None:
    sizes = MoEConfig(
        vocabulary=19, length=8, width=16, layers=2, heads=4, groups=2, feed_forward=24,
        experts=4, capacity=capacity, routing_length=together,
    )  # fmt: skip
    (model, weights), tokens = make(lambda: moe.MoE(sizes, compute, rngs=nnx.Rngs(0))), draw_tokens(3, 8)
    logits, uneven = numpy_models.run_moe(weights, sizes, tokens)
    got_logits, got_uneven = run(model, tokens)
    assert_close(got_logits, logits)
    assert_close(got_uneven, uneven)


def test_t5_with_padding_and_relative_positions() -> None:
    sizes = T5Config(
        vocabulary=19, length=9, target_length=6, width=16, layers=2, heads=3, head_width=4, feed_forward=24,
        buckets=8, farthest=7,
    )  # fmt: skip
    model, weights = make(lambda: t5.T5(sizes, Compute(), rngs=nnx.Rngs(0)))
    source, target = draw_tokens(3, 9), draw_tokens(3, 6)
    source[0, 5:] = target[0, 4:] = t5.PADDING
    source[1:] = np.maximum(source[1:], 1)
    expected = numpy_models.run_t5(weights, sizes, source, target)
    assert_close(run(model, source, target), expected)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 64), (16, 20)])
def test_t5_puts_every_distance_into_the_published_bucket(buckets: int, farthest: int, both_ways: bool) -> None:
    distances = np.arange(-2 * farthest, 2 * farthest + 1)
    expected = [numpy_layers.bucket(int(d), buckets, farthest, both_ways=both_ways) for d in distances]
    rows = t5.bucket(jnp.asarray(distances), buckets, farthest, both_ways=both_ways)
    np.testing.assert_array_equal(rows, expected)


def test_vae_encodes_and_decodes() -> None:
    sizes = VAEConfig(image=4, feed_forward=12, latent=3)
    model, weights = make(lambda: vae.VAE(sizes, Compute(), rngs=nnx.Rngs(0)))
    images = RNG(2).normal(size=(5, 4, 4)).astype(np.float32)
    mean, log_variance = np.split(numpy_models.run_mlp(weights["encoder"], images.reshape(5, 16)), 2, axis=-1)
    got_mean, got_log_variance = model.encode(jnp.asarray(images))
    assert_close(got_mean, mean)
    assert_close(got_log_variance, log_variance)
    assert_close(model.decode(got_mean), numpy_models.run_mlp(weights["decoder"], mean))


def draw_keys(count: int) -> Any:
    return jax.random.key_data(jax.random.split(jax.random.key(3), count))


def test_the_loss_of_the_vae_is_what_bernoulli_pixels_and_a_gaussian_latent_cost() -> None:
    sizes = VAEConfig(image=4, feed_forward=12, latent=3)
    model, weights = make(lambda: vae.VAE(sizes, Compute(), rngs=nnx.Rngs(0)))
    ink, keys = RNG(2).integers(0, 2, (5, 16)), draw_keys(5)
    got = vae.measure(model, {"image": jnp.asarray(ink.reshape(5, 4, 4) * 15, jnp.uint8), "key": keys})
    mean, log_variance = np.split(numpy_models.run_mlp(weights["encoder"], ink.astype(np.float64)), 2, axis=-1)
    noise = np.stack([jax.random.normal(key, (3,)) for key in jax.random.wrap_key_data(keys)])
    logits = numpy_models.run_mlp(weights["decoder"], mean + np.exp(log_variance / 2) * noise)
    reconstruction = (np.logaddexp(0, logits) - ink * logits).sum(-1)
    assert_close(got["reconstruction"], reconstruction)
    assert_close(got["loss"], reconstruction + (mean**2 + np.exp(log_variance) - 1 - log_variance).sum(-1) / 2)


DIFFUSION = DiffusionConfig(
    image=4, channels=2, width=16, levels=2, blocks=1, heads=2, text_width=8, text_layers=1, text_length=5
)


class Oracle:
    """Knows the velocity at a time from the pictures, and is wrong by its text."""

    def __init__(self, pictures: NDArray[np.float32], unconditional: float) -> None:
        self.pictures, self.config = pictures, replace(DIFFUSION, unconditional=unconditional)

    def __call__(self, noisy: Any, time: Any, text: Any) -> Any:
        angle = np.asarray(time)[:, None, None, None] * np.pi / 2
        return (np.cos(angle) * noisy - self.pictures) / np.sin(angle) + text[:, :1, None, None]


@pytest.mark.parametrize("unconditional", [0.0, 1.0])
def test_the_loss_of_diffusion_is_the_error_of_the_velocity(unconditional: float) -> None:
    pictures = RNG(2).normal(size=(4, 4, 4, 2)).astype(np.float32)
    batch = {"image": jnp.asarray(pictures), "text": jnp.arange(1, 5)[:, None], "key": draw_keys(4)}
    model: Any = Oracle(pictures, unconditional)
    got = diffusion.measure(model, batch)
    np.testing.assert_allclose(got["loss"], (1 - unconditional) * np.array([1, 4, 9, 16]), atol=1e-3)
    np.testing.assert_allclose(got["wrong_text_loss"], (1 - unconditional) * np.array([16, 1, 4, 9]), atol=1e-3)


def test_the_u_net_of_diffusion() -> None:
    model, weights = make(lambda: diffusion.UNet(DIFFUSION, Compute(), rngs=nnx.Rngs(0)))
    noisy = RNG(2).normal(size=(2, 4, 4, 2)).astype(np.float32)
    # Up to 8 radians; the test below takes the larger angles, of which float32 keeps fewer digits.
    time, text = np.array([0.002, 0.008], np.float32), draw_tokens(2, 5, vocabulary=128)
    expected = numpy_models.run_unet(weights, DIFFUSION, noisy.astype(np.float64), time.astype(np.float64), text)
    assert_close(run(model, noisy, time, text), expected)


def test_the_noise_level_becomes_sines_and_cosines_up_to_a_thousand_radians() -> None:
    time = np.linspace(0, 1, 11, dtype=np.float32)
    waves = diffusion.sinusoids(jnp.asarray(time), 16)
    # The rate is exp(6.9) in float32, whose exponent is good to 4e-7, so the angle of 1,000 is to 5e-4.
    np.testing.assert_allclose(waves, numpy_models.make_waves(time.astype(np.float64), 16), atol=1e-3)
