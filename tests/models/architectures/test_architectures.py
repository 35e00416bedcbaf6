"""The models compute what their papers say, checked against formulas written in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.architectures import gpt, layers, t5, vit
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import GPTConfig, T5Config, ViTConfig
from tests.models.architectures import numpy_layers

GPT_SIZES = GPTConfig(length=16, width=32, layers=2, heads=4, feed_forward=64)
VIT_SIZES = ViTConfig(patch=4, width=32, layers=2, heads=4, feed_forward=64)


@pytest.fixture(scope="module")
def model() -> gpt.GPT:
    return gpt.GPT(GPT_SIZES, Compute(), rngs=nnx.Rngs(0))


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_an_untrained_gpt_is_about_as_good_as_guessing(model: gpt.GPT) -> None:
    tokens = jax.random.randint(jax.random.key(2), (8, 17), 0, 256)
    loss = nnx.jit(gpt.measure)(model, {"tokens": tokens})["loss"]
    assert loss.shape == (8, 16)
    # The table's deviation of 0.02 gives logits of 0.02 * sqrt(32).
    assert float(loss.mean()) == pytest.approx(np.log(256), abs=0.05)


@pytest.mark.parametrize("causal", [True, False])
def test_grouped_attention_is_that_of_the_formula(causal: bool) -> None:
    q, k, v = random(2, 6, 4, 8), random(2, 6, 2, 8, seed=1), random(2, 6, 2, 8, seed=2)
    arrays = (np.asarray(x, np.float64) for x in (q, k, v))
    expected = numpy_layers.attend(*arrays, scale=8**-0.5, seen=numpy_layers.look_back(2, 6) if causal else None)
    for attend in (layers.make_attention(Compute()), functools.partial(layers.attend, how="xla")):
        np.testing.assert_allclose(attend(q, k, v, is_causal=causal), expected, rtol=1e-4, atol=1e-5)


def test_attention_with_a_bias_and_padding_is_that_of_the_formula() -> None:
    q, k, v = random(2, 6, 4, 8), random(2, 5, 4, 8, seed=1), random(2, 5, 4, 8, seed=2)
    seen, bias = np.arange(5) < np.array([[3], [5]]), random(1, 4, 6, 5, seed=3)
    found = layers.attend(q, k, v, how="xla", mask=jnp.asarray(seen)[:, None, None], bias=bias, scale=1.0)
    arrays = (np.asarray(x, np.float64) for x in (q, k, v))
    everywhere = np.broadcast_to(seen[:, None], (2, 6, 5))
    expected = numpy_layers.attend(*arrays, seen=everywhere, bias=np.asarray(bias[0], np.float64), scale=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_kernels_rms_norm_has_the_parameters_of_flax() -> None:
    one, other = (layers.make_rms_norm(32, Compute(norm=how), nnx.Rngs(0)) for how in ("flax", "ffi"))
    assert isinstance(other, layers.KernelRMSNorm)
    assert [path for path, _ in nnx.to_flat_state(nnx.state(other))] == [("scale",)]
    x = 3 * random(2, 5, 32) + 1
    expected = np.asarray(x) / np.sqrt((np.asarray(x, np.float64) ** 2).mean(axis=-1, keepdims=True) + layers.EPSILON)
    np.testing.assert_allclose(one(x), expected, rtol=1e-4, atol=1e-5)


def test_vit_scores_each_image_of_a_batch_with_or_without_a_dimension_of_channels() -> None:
    model = vit.ViT(VIT_SIZES, Compute(), rngs=nnx.Rngs(0))
    images, labels = random(6, 8, 8), jnp.arange(6)
    logits = nnx.jit(lambda model, images: model(images))(model, images)
    scores = nnx.jit(vit.measure)(model, {"image": images, "label": labels})
    assert logits.shape == (6, 10)
    np.testing.assert_array_equal(scores["accuracy"], np.asarray(logits).argmax(axis=1) == np.arange(6))
    np.testing.assert_allclose(model(images[..., None]), logits, rtol=1e-4, atol=1e-5)


def test_dropout_thins_a_training_step_and_not_an_evaluation() -> None:
    sizes = ViTConfig(patch=4, width=32, layers=2, heads=4, feed_forward=64, dropout=0.5)
    model = vit.ViT(sizes, Compute(), rngs=nnx.Rngs(0))
    images = random(6, 8, 8)
    judged = nnx.view(model, deterministic=True)
    assert not np.array_equal(model(images), model(images))  # another mask each time
    np.testing.assert_array_equal(judged(images), judged(images))


def test_gradients_of_a_table_are_summed_in_float32_by_a_switch() -> None:
    index = jnp.array([3] * 1000 + [1])

    def gradient(embedding_sum: str) -> jax.Array:
        compute = Compute(dtype="bf16", embedding_sum=embedding_sum)
        embed = layers.make_embed(5, 2, layers.TABLE, compute, nnx.Rngs(0))
        found: jax.Array = nnx.grad(lambda embed: embed(index).astype(jnp.float32).sum())(embed)["embedding"][...]
        return found

    assert gradient("f32")[:, 0].tolist() == [0, 1, 0, 1000, 0]
    assert float(gradient("activations")[3, 0]) < 600  # bf16 alone stops at 256, or at a multiple of it


def test_distances_of_t5_are_summed_so_too() -> None:
    sizes = T5Config(
        vocabulary=16, length=64, target_length=64, width=32, layers=1, heads=2, head_width=16, feed_forward=32
    )
    compute = Compute(dtype="bf16", embedding_sum="f32")
    distances = t5.Distances(sizes, compute, both_ways=False, rngs=nnx.Rngs(0))
    gradient = nnx.grad(lambda distances: distances(64).astype(jnp.float32).sum())(distances)["table"]["embedding"][...]
    assert gradient[:, 0].sum() == 64 * 64  # in bf16 a sum stops at 256, or at a multiple of it


def test_the_loss_of_bf16_logits_is_that_of_float32_ones_and_its_gradient_no_scatter() -> None:
    logits, labels = random(3, 5, 11).astype(jnp.bfloat16), jnp.arange(15).reshape(3, 5) % 11

    def loss(logits: jax.Array) -> jax.Array:
        return layers.cross_entropy(logits, labels).sum()

    (value, gradient), (same, expected) = (
        jax.value_and_grad(loss)(one) for one in (logits, logits.astype(jnp.float32))
    )
    assert float(value) == pytest.approx(float(same), rel=1e-6)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(gradient.astype(jnp.float32), expected, atol=4e-3)  # half of bf16's last digit below 1
    assert "scatter" not in str(jax.make_jaxpr(jax.grad(loss))(logits))
