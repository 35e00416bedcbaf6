"""The models compute what their papers say, checked against independent implementations."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.architectures import gpt, layers, llama, transformer, vit
from nightjar_models.parallel.sharding import DRAWN_TOGETHER, Keys
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import GPTConfig, LlamaConfig, ViTConfig

GPT_SIZES = GPTConfig(length=16, width=32, layers=2, heads=4, feed_forward=64)
VIT_SIZES = ViTConfig(patch=4, width=32, layers=2, heads=4, feed_forward=64)


@pytest.fixture(scope="module")
def model() -> gpt.GPT:
    return gpt.GPT(GPT_SIZES, Compute(), Keys(0))


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_no_position_sees_a_later_byte(model: gpt.GPT) -> None:
    tokens = jax.random.randint(jax.random.key(1), (1, 16), 0, 256)
    logits = nnx.jit(model)
    changed = tokens.at[0, 9].set((tokens[0, 9] + 1) % 256)
    difference = np.abs(np.asarray(logits(tokens) - logits(changed)))[0].max(axis=-1)
    assert (difference[:9] == 0).all()
    assert (difference[9:] > 0).all()


def test_an_untrained_gpt_is_about_as_good_as_guessing(model: gpt.GPT) -> None:
    tokens = jax.random.randint(jax.random.key(2), (8, 17), 0, 256)
    # Logits of unit variance cost half a nat more than equal ones.
    assert float(nnx.jit(gpt.measure)(model, {"tokens": tokens})["loss"]) == pytest.approx(np.log(256) + 0.5, abs=0.2)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_agrees_with_jax_nn(causal: bool) -> None:
    x, qkv, projection = random(2, 16, 32), random(32, 3, 4, 8, seed=1) / 6, random(4, 8, 32, seed=2) / 6
    q, k, v = (jnp.tensordot(x, qkv[:, part], axes=1) for part in range(3))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    expected = jnp.tensordot(mixed, projection, axes=2)
    found = transformer.self_attention(x, qkv, projection, causal=causal, how="einsum")
    # float32 sums of at most 32 products of order one
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_ways_of_attention_agree_with_groups_bias_and_padding() -> None:
    q, k, v = random(2, 4, 6, 8), random(2, 2, 5, 8, seed=1), random(2, 2, 5, 8, seed=2)
    seen, bias = jnp.arange(5) < jnp.array([[3], [5]]), random(4, 6, 5, seed=3)
    one, other = (layers.attend(q, k, v, how=how, seen=seen, bias=bias, scale=1.0) for how in ("einsum", "xla"))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    hidden = layers.attend(
        q, k.at[0, :, 3:].set(9), v.at[0, :, 3:].set(9), how="einsum", seen=seen, bias=bias, scale=1.0
    )
    np.testing.assert_array_equal(one, hidden)


@pytest.mark.parametrize("sharpness", [1, 1000])
@pytest.mark.parametrize("positions", [(6, 5), (60, 50)], ids=["few scores", "many"])
def test_gradients_of_attention_agree_where_a_row_sees_nothing(positions: tuple[int, int], sharpness: float) -> None:
    T, S = positions
    assert (T * S * 8 <= layers.SMALL_PRODUCT) == (positions == (6, 5))
    q, k, v = sharpness * random(2, 4, T, 8), random(2, 4, S, 8, seed=1), random(2, 4, S, 8, seed=2)
    seen, pull = jnp.arange(S) < jnp.array([[0], [S]]), random(2, 4, T, 8, seed=3)

    def gradients(how: str) -> tuple[jax.Array, ...]:
        pulled = jax.grad(lambda *x: (layers.attend(*x, how=how, seen=seen) * pull).sum(), argnums=(0, 1, 2))
        found: tuple[jax.Array, ...] = pulled(q, k, v)
        return found

    for one, other in zip(gradients("einsum"), gradients("xla"), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * sharpness)


def test_gradients_of_few_scores_are_no_product_for_each_head() -> None:
    def count(T: int, dtype: Any) -> int:
        x = random(2, 4, T, 8).astype(dtype)
        pulled = jax.jit(jax.grad(lambda *x: layers.attend(*x, how="einsum").sum(), argnums=(0, 1, 2)))
        # a product that sums over the rows of its first factor is one call of a library for each head
        return len(re.findall(r"lhs_contracting_dims=\{2\}", pulled.lower(x, x, x).compile().as_text() or ""))

    assert count(64, jnp.float32) == 2
    assert count(16, jnp.float32) == count(16, jnp.bfloat16) == 0


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 2, 3, 5)])
def test_rows_of_any_shape_are_multiplied(shape: tuple[int, ...]) -> None:
    x, w = random(*shape), random(5, 4, seed=1)
    np.testing.assert_allclose(layers.multiply(x, w), x @ w, rtol=1e-5, atol=1e-6)


def test_norms_agree_with_flax() -> None:
    x = 3 * random(2, 5, 32) + 1
    expected = nnx.LayerNorm(32, epsilon=1e-5, use_bias=False, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(layers.layer_norm(x, jnp.ones(32)), expected, rtol=1e-4, atol=1e-5)
    expected = nnx.RMSNorm(32, epsilon=1e-5, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(layers.rms_norm(x, jnp.ones(32)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_of_a_layer_norm_are_those_of_jax_nn_where_a_row_is_flat_too(dtype: Any) -> None:
    x, scale, pull = (3 * random(2, 5, 32)).at[0].set(7), 1 + random(32, seed=1), random(2, 5, 32, seed=2)

    def differentiate(norm: Any) -> tuple[jax.Array, jax.Array]:
        rounded = x.astype(dtype).astype(jnp.float32), scale.astype(dtype).astype(jnp.float32)
        slopes: tuple[jax.Array, jax.Array] = jax.grad(lambda *two: (norm(*two) * pull).sum(), argnums=(0, 1))(*rounded)
        return slopes

    found = differentiate(lambda x, scale: layers.layer_norm(x.astype(dtype), scale.astype(dtype)))
    expected = differentiate(lambda x, scale: jax.nn.standardize(x, axis=-1, epsilon=layers.EPSILON) * scale)
    close = 1e-5 if dtype == jnp.float32 else 0.05
    for row, deviation in [(0, layers.EPSILON**-0.5), (1, 1.0)]:  # a flat row is stretched by 300
        np.testing.assert_allclose(found[0][row], expected[0][row], rtol=close, atol=close * deviation)
    np.testing.assert_allclose(found[1], expected[1], rtol=close, atol=10 * close)


def test_a_layer_norm_keeps_its_input_and_two_numbers_for_each_position() -> None:
    x = random(2, 5, 32)
    kept = jax.tree.leaves(jax.vjp(layers.layer_norm, x, jnp.ones(32))[1])
    assert sum(one.size for one in kept) == x.size + 2 * 2 * 5 + 32


def test_rotation_is_that_of_complex_numbers_and_knows_distances_only() -> None:
    x = np.asarray(random(1, 1, 7, 8))
    angles = np.arange(7)[:, None] * 100.0 ** (-np.arange(4) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(layers.rotate(jnp.asarray(x), 100.0), expected, rtol=1e-4, atol=1e-5)
    same = layers.rotate(jnp.ones((1, 1, 7, 8)), 100.0)[0, 0]
    products = np.asarray(same @ same.T)
    np.testing.assert_allclose(products[1:, 1:], products[:-1, :-1], rtol=1e-4)


def test_no_position_of_a_llama_sees_a_later_byte() -> None:
    sizes = LlamaConfig(length=8, width=16, layers=1, heads=4, groups=2, feed_forward=32)
    logits = nnx.jit(llama.Llama(sizes, Compute(), Keys(0)))
    tokens = jax.random.randint(jax.random.key(1), (1, 8), 0, 256)
    difference = np.abs(np.asarray(logits(tokens) - logits(tokens.at[0, 5].add(1))))[0].max(axis=-1)
    assert (difference[:5] == 0).all()
    assert (difference[5:] > 0).all()


def test_patches_are_squares_in_reading_order() -> None:
    found = vit.patches(jnp.arange(64.0).reshape(1, 8, 8), 4)
    assert found.shape == (1, 4, 16)
    assert found[0, 1].tolist() == [row * 8.0 + column for row in range(4) for column in range(4, 8)]


def test_vit_scores_a_batch() -> None:
    model = vit.ViT(VIT_SIZES, Compute(), Keys(0))
    images, labels = random(6, 8, 8), jnp.arange(6)
    logits = nnx.jit(model)(images)
    scores = nnx.jit(vit.measure)(model, {"image": images, "label": labels})
    assert logits.shape == (6, 10)
    right = (np.asarray(logits).argmax(axis=1) == np.arange(6)).mean()
    assert float(scores["accuracy"]) == pytest.approx(right)


def test_keys_are_those_of_flax() -> None:
    ours, theirs = Keys(3), nnx.Rngs(3)
    for _ in range(3):
        assert jnp.array_equal(jax.random.key_data(ours.params()), jax.random.key_data(theirs.params()))


def test_large_arrays_of_one_shape_are_drawn_together_and_stay_what_they_were() -> None:
    large, small = (512, DRAWN_TOGETHER // 512), (4, 4)

    def build(keys: Keys) -> list[jax.Array]:
        return [keys.normal(large), keys.normal(small), keys.normal(large), jax.random.key_data(keys.params())]

    def initialize(shapes: list[tuple[int, ...] | None]) -> list[jax.Array]:
        return build(Keys(jax.random.key(7), shapes))

    counted = Keys(0)
    jax.eval_shape(lambda: build(counted))
    assert counted.shapes == [large, small, large, None]
    apart, together = (jax.jit(lambda shapes=shapes: initialize(shapes)) for shapes in ([], counted.shapes))
    for one, other in zip(apart(), together(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(apart()[1], together()[1])
    draws = [len(re.findall(r"call @_normal(_\d+)?\(", initial.lower().as_text())) for initial in (apart, together)]
    assert draws == [3, 2]  # what the compiler has to do


def test_gradients_of_a_row_are_summed_in_float32() -> None:
    index = jnp.array([3] * 1000 + [1])

    def gradient(dtype: jnp.dtype, table: jax.Array) -> jax.Array:
        found: jax.Array = jax.grad(lambda t: layers.look_up(t.astype(dtype), index).astype(jnp.float32).sum())(table)
        return found

    table = random(5, 2)
    assert gradient(jnp.dtype("bfloat16"), table)[:, 0].tolist() == [0, 1, 0, 1000, 0]  # bf16 alone stops at 256
    np.testing.assert_array_equal(layers.look_up(table, index), table[index])
    ours = jax.make_jaxpr(jax.grad(lambda t: layers.look_up(t, index).sum()))(table)
    plain = jax.make_jaxpr(jax.grad(lambda t: t[index].sum()))(table)
    assert str(ours) == str(plain), "in float32 it is the plain one"


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
