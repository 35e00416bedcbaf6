"""Attention, pooling, activations and compositions of layers of `flax.nnx` against their formulas in NumPy.

Source: Vaswani et al. 2017, equation 1 and section 3.2.2; Hu et al. 2021, section 4.1 (LoRA).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.conformance.agreement import BFLOAT16, assert_close, attend, draw, read

RANDOM_BIAS = nnx.initializers.normal(1.0)  # a bias of zeros would hide that it is missing


def project(x: Any, layer: Any) -> Any:
    """(batch, length, features) to (batch, length, heads, depth)."""
    return np.einsum("blf,fhd->blhd", x, read(layer.kernel)) + (read(layer.bias) if layer.use_bias else 0)


@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (6, 6), (7, 4)])
@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
@pytest.mark.parametrize("sow", [False, True])  # Flax's own attention, where the weights are wanted, or JAX's
def test_dot_product_attention(queries: int, keys: int, sow: bool) -> None:
    q, k, v = draw(2, queries, 3, 8, seed=1), draw(2, keys, 3, 8, seed=2), draw(2, keys, 3, 8, seed=3)
    options = {"deterministic": True, "module": nnx.Module() if sow else None}
    causal = np.tril(np.ones((queries, keys), bool))  # the first query sees the first key, whatever their numbers
    mask = np.random.default_rng(0).random((2, 1, queries, keys)) < 0.6
    mask[..., 0] = True
    bias = draw(2, 3, queries, keys)
    for given, kept, shift in (
        ({}, None, 0.0),
        ({"mask": jnp.asarray(mask)}, mask, 0.0),
        ({"bias": jnp.asarray(bias)}, None, bias),
        ({"is_causal": True}, causal, 0.0),
        ({"is_causal": True, "mask": jnp.asarray(mask), "bias": jnp.asarray(bias)}, causal & mask, bias),
    ):
        seen = nnx.dot_product_attention(q, k, v, **given, **options)
        assert_close(seen, attend(q, k, v, kept, shift), 5e-6)
    grouped = nnx.dot_product_attention(q, k[:, :, :1], v[:, :, :1], **options)
    assert_close(grouped, attend(q, k[:, :, :1], v[:, :, :1]), 5e-6)
    rows = nnx.dot_product_attention(q[None], k[None], v[None], **options)  # two axes of a batch
    assert_close(rows[0], attend(q, k, v), 5e-6)


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


@pytest.mark.parametrize(
    "name", ["relu", "silu", "sigmoid", "softmax", "gelu", "leaky_relu", "glu", "tanh", "softplus"]
)
def test_activations_are_those_of_jax(name: str) -> None:
    x = 3 * draw(40)  # test_jax_lax_nn.py has their formulas
    assert_close(getattr(nnx, name)(x), getattr(jax.nn, name)(x), 0)
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
