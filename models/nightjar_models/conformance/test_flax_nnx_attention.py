"""Attention, pooling, activations and compositions of layers of `flax.nnx` against their formulas in NumPy.

Source: Vaswani et al. 2017, equation 1 and section 3.2.2; Hu et al. 2021, section 4.1 (LoRA).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

from nightjar_models.conformance.agreement import BFLOAT16, assert_close, draw, read

RANDOM_BIAS = nnx.initializers.normal(1.0)  # a bias of zeros would hide that it is missing


def attend(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = 0.0) -> Any:
    """Equation 1 of Vaswani et al. for (batch, length, heads, depth)."""
    logits = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[-1]) + bias
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))


def project(x: Any, layer: Any) -> Any:
    """(batch, length, features) to (batch, length, heads, depth)."""
    return np.einsum("blf,fhd->blhd", x, read(layer.kernel)) + (read(layer.bias) if layer.use_bias else 0)


def test_dot_product_attention() -> None:
    q, k, v = draw(2, 5, 3, 8, seed=1), draw(2, 7, 3, 8, seed=2), draw(2, 7, 3, 8, seed=3)
    assert_close(nnx.dot_product_attention(q, k, v, deterministic=True), attend(q, k, v), 5e-6)
    mask = np.random.default_rng(0).random((2, 1, 5, 7)) < 0.6
    mask[..., 0] = True
    masked = nnx.dot_product_attention(q, k, v, mask=jnp.asarray(mask), deterministic=True)
    assert_close(masked, attend(q, k, v, mask), 5e-6)
    bias = draw(2, 3, 5, 7)
    biased = nnx.dot_product_attention(q, k, v, bias=jnp.asarray(bias), deterministic=True)
    assert_close(biased, attend(q, k, v, bias=bias), 5e-6)


def test_attention_weights_are_captured() -> None:
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    x = draw(1, 4, 8)
    forward = nnx.capture(lambda layer, x: layer(x, sow_weights=True), nnx.Intermediate)
    y, captured = forward(layer, x)
    ((_, values),) = nnx.to_flat_state(captured)
    q, k, v = (project(x, part) for part in (layer.query, layer.key, layer.value))
    identity = np.broadcast_to(np.eye(4)[None, :, None], (1, 4, 2, 4))
    (weights,) = values.get_value()
    assert_close(weights.transpose(0, 2, 1, 3), attend(q, k, identity), 5e-6)
    assert_close(y, np.einsum("blhd,hdf->blf", attend(q, k, v), read(layer.out.kernel)), 1e-5)


def test_dot_product_attention_in_bfloat16() -> None:
    q, k, v = (jnp.asarray(draw(4, 32, 4, 16, seed=seed), jnp.bfloat16) for seed in (1, 2, 3))
    y = nnx.dot_product_attention(q, k, v, deterministic=True, dtype=jnp.bfloat16)
    assert y.dtype == jnp.bfloat16
    expected = attend(*(np.asarray(x.astype(jnp.float32)) for x in (q, k, v)))
    # Logits up to 4 are rounded to bfloat16, at worst by 2**-7, and so are the weights and their 32 products.
    error = np.abs(np.asarray(y.astype(jnp.float32)) - expected)
    assert error.max() < 16 * BFLOAT16
    assert error.mean() < BFLOAT16


def test_multi_head_attention_by_default() -> None:
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    params = dict(nnx.to_flat_state(nnx.state(layer, nnx.Param)))
    parts = ("query", "key", "value", "out")
    assert set(params) == {(part, name) for part in parts for name in ("kernel", "bias")}
    assert all(value.get_value().dtype == jnp.float32 for value in params.values())
    assert not any(read(params[part, "bias"]).any() for part in parts)
    assert layer.query.kernel.shape == (8, 2, 4)
    assert layer.out.kernel.shape == (2, 4, 8)


@pytest.mark.parametrize("use_bias", [True, False])
def test_multi_head_attention(use_bias: bool) -> None:
    layer = nnx.MultiHeadAttention(
        num_heads=4, in_features=12, qkv_features=16, out_features=10, use_bias=use_bias, decode=False,
        bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0),
    )  # fmt: skip
    x, mask = draw(2, 6, 12), np.tril(np.ones((6, 6), bool))
    q, k, v = (project(x, part) for part in (layer.query, layer.key, layer.value))
    bias = read(layer.out.bias) if use_bias else 0
    expected = np.einsum("blhd,hdf->blf", attend(q, k, v, mask), read(layer.out.kernel)) + bias
    causal = nnx.make_causal_mask(jnp.ones((2, 6)))
    assert_close(causal, np.broadcast_to(mask, (2, 1, 6, 6)), 0)
    assert_close(layer(x, mask=causal), expected, 1e-5)
    assert_close(layer(x, is_causal=True), expected, 1e-5)
    plain = np.einsum("blhd,hdf->blf", attend(q, k, v), read(layer.out.kernel)) + bias
    assert_close(layer(x), plain, 1e-5)


def test_multi_head_attention_over_other_inputs() -> None:
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    x, y, z = draw(1, 3, 8), draw(1, 5, 8, seed=1), draw(1, 5, 8, seed=2)
    q, k, v = project(x, layer.query), project(y, layer.key), project(z, layer.value)
    expected = np.einsum("blhd,hdf->blf", attend(q, k, v), read(layer.out.kernel))
    assert_close(layer(x, y, z), expected, 1e-5)
    k, v = project(y, layer.key), project(y, layer.value)
    assert_close(layer(x, y), np.einsum("blhd,hdf->blf", attend(q, k, v), read(layer.out.kernel)), 1e-5)


def test_multi_head_attention_normalizes_queries_and_keys() -> None:
    layer = nnx.MultiHeadAttention(2, 8, normalize_qk=True, use_bias=False, decode=False, rngs=nnx.Rngs(0))
    x = draw(1, 4, 8)

    def normalize(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)

    q, k, v = normalize(project(x, layer.query)), normalize(project(x, layer.key)), project(x, layer.value)
    assert_close(layer(x), np.einsum("blhd,hdf->blf", attend(q, k, v), read(layer.out.kernel)), 2e-5)


def test_multi_head_attention_decodes_one_token_at_a_time() -> None:
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    x = draw(2, 5, 8)
    whole = layer(x, mask=nnx.make_causal_mask(jnp.ones((2, 5))))
    layer.init_cache((2, 5, 8))
    assert isinstance(layer.cached_key, nnx.Cache)
    for position in range(5):
        step = layer(x[:, position : position + 1], decode=True)
        assert_close(step[:, 0], np.asarray(whole)[:, position], 1e-5)
        assert int(read(layer.cache_index)) == position + 1


def test_multi_head_attention_drops_weights_only_in_training() -> None:
    layer = nnx.MultiHeadAttention(2, 8, dropout_rate=0.5, decode=False, rngs=nnx.Rngs(0))
    x = draw(1, 4, 8)
    kept = layer(x, deterministic=True)
    q, k, v = (project(x, part) for part in (layer.query, layer.key, layer.value))
    assert_close(kept, np.einsum("blhd,hdf->blf", attend(q, k, v), read(layer.out.kernel)), 1e-5)
    first, second = layer(x, deterministic=False), layer(x, deterministic=False)
    assert not np.allclose(first, kept)
    assert not np.allclose(first, second)


def test_pooling() -> None:
    x = draw(2, 6, 4, 3)
    blocks = x.reshape(2, 3, 2, 2, 2, 3).astype(np.float64)
    assert_close(nnx.avg_pool(x, (2, 2), strides=(2, 2)), blocks.mean((2, 4)))
    assert_close(nnx.max_pool(x, (2, 2), strides=(2, 2)), blocks.max((2, 4)))
    one_by_one = np.maximum(x[:, 1:], x[:, :-1])  # strides are 1 unless given
    assert_close(nnx.max_pool(x, (2, 1)), one_by_one)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    assert_close(nnx.avg_pool(x, (3, 1), padding="SAME"), sums / 3)
    counts = np.array([2, 3, 3, 3, 3, 2])[:, None, None]
    assert_close(nnx.avg_pool(x, (3, 1), padding="SAME", count_include_pad=False), sums / counts)
    assert_close(nnx.max_pool(x - 5, (3, 1), padding="SAME")[:, 0], (x - 5)[:, :2].max(1))


def test_activations() -> None:
    x = 3 * draw(40)
    wide = x.astype(np.float64)
    sigmoid = special.expit(wide)
    assert_close(nnx.relu(x), np.maximum(x, 0))
    assert_close(nnx.silu(x), wide * sigmoid)
    assert_close(nnx.sigmoid(x), sigmoid)
    assert_close(nnx.softmax(x), special.softmax(wide))
    tanh = np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    assert_close(nnx.gelu(x), wide * (1 + tanh) / 2)
    assert_close(nnx.gelu(x, approximate=False), wide * special.ndtr(wide))
    assert_close(nnx.leaky_relu(x), np.where(wide > 0, wide, 0.01 * wide))
    assert_close(nnx.leaky_relu(x, 0.2), np.where(wide > 0, wide, 0.2 * wide))
    assert_close(nnx.glu(x), wide[:20] * sigmoid[20:])
    assert_close(nnx.one_hot(jnp.array([2, 0]), 3), np.eye(3)[[2, 0]])


def test_sequential() -> None:
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.relu, nnx.Linear(4, 2, rngs=rngs))
    x = draw(5, 3)
    first, last = (read(nnx.state(model)["layers"][index]["kernel"]) for index in (0, 2))
    assert_close(model(x), np.maximum(x @ first, 0) @ last)


def test_lora() -> None:
    layer = nnx.LoRA(4, 2, 3, rngs=nnx.Rngs(0))
    x = draw(5, 4)
    assert isinstance(layer.lora_a, nnx.LoRAParam)
    assert_close(layer(x), np.zeros((5, 3)), 0)  # the second factor begins at zero
    layer.lora_b[...] = jnp.asarray(draw(2, 3))
    assert_close(layer(x), x @ read(layer.lora_a) @ read(layer.lora_b))
    over = nnx.LoRALinear(4, 3, lora_rank=2, rngs=nnx.Rngs(0))
    assert_close(over(x), x @ read(over.kernel))
