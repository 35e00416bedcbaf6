"""`jax.lax` and `jax.nn` against plain loops and formulas in NumPy and SciPy.

Source: the documentation of `jax.lax`, whose loops are given there as Python; Hendrycks and Gimpel 2016 (GELU);
Vaswani et al. 2017, equation 1 (attention).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import special

from nightjar_models.conformance.agreement import BFLOAT16, assert_close, assert_same, attend, draw

X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2])
def test_scan(reverse: bool, unroll: int) -> None:
    rows = draw(5, 3)

    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return 0.5 * carry + row, carry - row

    carry, outputs = lax.scan(step, jnp.zeros(3), rows, reverse=reverse, unroll=unroll)
    expected, seen = np.zeros(3), np.zeros((5, 3))
    for index in reversed(range(5)) if reverse else range(5):
        seen[index] = expected - rows[index]
        expected = 0.5 * expected + rows[index]
    assert_close(carry, expected)
    assert_close(outputs, seen)


def test_scan_of_a_length_and_its_gradient() -> None:
    total, nothing = lax.scan(lambda carry, _: (carry * 2, None), jnp.asarray(1.0), None, length=6)
    assert (float(total), nothing) == (64.0, None)
    slope = jax.grad(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0])(0.7)
    x = 0.7
    assert_close(slope, np.cos(x) * np.cos(np.sin(x)) * np.cos(np.sin(np.sin(x))))
    with pytest.raises(ValueError, match="size"):
        lax.scan(lambda c, x: (c, None), 0, (np.zeros(3), np.zeros(4)))


def test_loops_and_branches() -> None:
    assert int(lax.fori_loop(2, 7, lambda index, total: total * 10 + index, 0)) == 23456
    assert int(lax.while_loop(lambda x: x < 100, lambda x: x * 3, 1)) == 243
    assert int(lax.while_loop(lambda x: x < 1, lambda x: x * 3, 1)) == 1
    for flag in (True, False):
        assert int(lax.cond(flag, lambda x: x + 1, lambda x: x - 1, 5)) == (6 if flag else 4)
    branches = [lambda x: x, lambda x: 2 * x, lambda x: 3 * x]
    assert [int(lax.switch(index, branches, 5)) for index in (-1, 0, 1, 2, 9)] == [5, 5, 10, 15, 15]
    assert_same(lax.map(lambda row: row.sum(), X), X.sum(1))
    assert_same(lax.map(lambda row: row.sum(), X, batch_size=3), X.sum(1))
    assert_close(lax.associative_scan(jnp.add, X), np.cumsum(X, 0))
    assert_same(lax.select(np.array([True, False]), np.array([1, 2]), np.array([3, 4])), np.array([1, 4]))


def test_slices() -> None:
    for start in (0, 2, 5):  # a start too far is moved back, as documented
        first = min(start, 2)
        assert_same(lax.dynamic_slice(X, (start, 1), (2, 3)), X[first : first + 2, 1:4])
        assert_same(lax.dynamic_slice_in_dim(X, start, 2, axis=0), X[first : first + 2])
        updated = X.copy()
        updated[first : first + 2, 1:3] = -1
        assert_same(lax.dynamic_update_slice(X, -np.ones((2, 2), np.float32), (start, 1)), updated)
    for start in (-1, -3):  # from the end, unless that is not wanted
        first = min(4 + start, 2)
        assert_same(lax.dynamic_slice_in_dim(X, start, 2), X[first : first + 2])
        assert_same(lax.dynamic_slice(X, (start, 0), (2, 6)), X[first : first + 2])
        with pytest.raises(ValueError, match="out of bounds"):
            lax.dynamic_slice_in_dim(X, start, 2, allow_negative_indices=False)
        assert_same(lax.dynamic_index_in_dim(X, start, axis=0, keepdims=False), X[start])
    assert_same(lax.dynamic_slice_in_dim(X, 1, 2, axis=1), X[:, 1:3])
    assert_same(lax.dynamic_index_in_dim(X, 2, axis=1), X[:, 2:3])
    assert_same(lax.dynamic_index_in_dim(X, 2, axis=0, keepdims=False), X[2])
    updated = X.copy()
    updated[:, 3] = 0
    assert_same(lax.dynamic_update_slice_in_dim(X, np.zeros((4, 1), np.float32), 3, axis=1), updated)
    assert_same(lax.dynamic_update_index_in_dim(X, np.zeros(4, np.float32), 3, axis=1), updated)
    assert_same(lax.slice_in_dim(X, 1, 6, 2, axis=1), X[:, 1:6:2])
    assert_same(lax.slice(X, (1, 0), (4, 6), (2, 3)), X[1:4:2, ::3])


def test_top_k() -> None:
    x = np.array([[3.0, 9, 1, 9], [0, -1, 5, 2]], np.float32)
    values, indices = lax.top_k(x, 2)
    assert_same(values, np.array([[9, 9], [5, 2]], np.float32))
    assert_same(indices, np.array([[1, 3], [2, 3]]))  # of equals, the first one first


def test_elementwise() -> None:
    x = np.abs(draw(6)) + 0.1
    assert_close(lax.rsqrt(x), 1 / np.sqrt(x.astype(np.float64)))
    assert_close(lax.square(x), x.astype(np.float64) ** 2)
    assert_close(lax.clamp(0.3, x, np.float32(1.0)), np.clip(x, 0.3, 1.0))
    assert_close(lax.erf(x), special.erf(x.astype(np.float64)))
    assert_close(lax.logistic(x), special.expit(x.astype(np.float64)))
    assert_same(lax.complex(x, -x), x - 1j * x)
    assert_same(lax.iota(jnp.int32, 4), np.arange(4))
    assert_same(lax.broadcasted_iota(jnp.int32, (2, 3), 1), np.array([[0, 1, 2]] * 2))
    assert lax.convert_element_type(x, jnp.bfloat16).dtype == jnp.bfloat16
    assert_same(lax.bitcast_convert_type(np.float32([1.0]), jnp.uint32), np.array([0x3F800000], np.uint32))


def test_stop_gradient() -> None:
    gradient = jax.grad(lambda x: (lax.stop_gradient(x) * x).sum())(draw(3))
    assert_close(gradient, draw(3))


def test_dot_general() -> None:
    x, y = draw(2, 3, 4, 5), draw(2, 5, 6, 3)
    seen = lax.dot_general(x, y, (((3,), (1,)), ((0, 1), (0, 3))))
    assert_close(seen, np.einsum("abij,ajkb->abik", x.astype(np.float64), y), 5e-6)
    half = [value.astype(jnp.bfloat16) for value in (x[0, 0], y[0, :, :, 0])]
    wide = lax.dot_general(*half, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    assert_close(wide, half[0].astype(np.float64) @ half[1].astype(np.float64), 5e-6)
    assert wide.dtype == jnp.float32
    highest = lax.dot_general(x[0], y[0], (((2,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    assert_close(highest, np.tensordot(x[0].astype(np.float64), y[0], (2, 0)), 5e-6)


def test_ragged_dot() -> None:
    x, experts, sizes = draw(7, 3), draw(3, 3, 2), np.array([2, 0, 5])
    owner = np.repeat(np.arange(3), sizes)
    assert_close(lax.ragged_dot(x, experts, sizes), np.einsum("ti,tio->to", x.astype(np.float64), experts[owner]))


def test_reductions_and_cumulations() -> None:
    x = draw(4, 6)
    assert_close(lax.cumsum(x, axis=1), np.cumsum(x.astype(np.float64), 1))
    assert_close(lax.cumsum(x, axis=1, reverse=True), np.cumsum(x[:, ::-1].astype(np.float64), 1)[:, ::-1])
    assert_same(lax.cummax(x, axis=0), np.maximum.accumulate(x, 0))
    assert_close(lax.reduce(x, np.float32(0), lax.add, (1,)), x.astype(np.float64).sum(1), 5e-6)
    windows = lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 2), "VALID")
    assert_same(windows, x.reshape(4, 3, 2).max(-1))
    assert_same(lax.sort(x, dimension=0), np.sort(x, 0))
    assert_same(lax.rev(x, (1,)), x[:, ::-1])


def test_conv_general_dilated() -> None:
    x, kernel = draw(1, 2, 5, 5), draw(3, 2, 2, 2)
    expected = np.zeros((1, 3, 4, 4))
    for row, column in np.ndindex(4, 4):
        expected[0, :, row, column] = np.einsum(
            "cij,ocij->o", x[0, :, row : row + 2, column : column + 2].astype(np.float64), kernel
        )
    assert_close(lax.conv_general_dilated(x, kernel, (1, 1), "VALID"), expected, 5e-6)
    assert_close(lax.conv(x, kernel, (2, 2), "VALID"), expected[:, :, ::2, ::2], 5e-6)


ACTIVATIONS: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "swish": lambda x: x * special.expit(x),
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "log_sigmoid": special.log_expit,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "soft_sign": lambda x: x / (1 + np.abs(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = np.concatenate([3 * draw(20), np.float32([-30, 30, 8])])
    wide = x.astype(np.float64)
    assert_close(getattr(jax.nn, name)(x), ACTIVATIONS[name](wide))
    away = wide[np.abs(wide) > 0.05]
    slope = (ACTIVATIONS[name](away + 1e-6) - ACTIVATIONS[name](away - 1e-6)) / 2e-6
    _, pullback = jax.vjp(getattr(jax.nn, name), away.astype(np.float32))
    assert_close(pullback(np.ones(len(away), np.float32))[0], slope, 1e-5)


def test_arguments_of_activations() -> None:
    x, wide = 3 * draw(20), 3 * draw(20).astype(np.float64)
    assert_close(jax.nn.gelu(x, approximate=False), wide * special.ndtr(wide))
    assert_close(jax.nn.leaky_relu(x, 0.2), np.where(wide > 0, wide, 0.2 * wide))
    assert float(jax.grad(jax.nn.relu)(0.0)) == 0.0
    assert_close(jax.nn.glu(x), wide[:10] * special.expit(wide[10:]))


def test_softmax_and_log_softmax() -> None:
    x = 3 * draw(3, 4, 5)
    wide = x.astype(np.float64)
    for axis in (-1, 0, (1, 2)):
        assert_close(jax.nn.softmax(x, axis=axis), special.softmax(wide, axis=axis))
        assert_close(jax.nn.log_softmax(x, axis=axis), special.log_softmax(wide, axis=axis))
        assert_close(jax.nn.logsumexp(x, axis=axis), special.logsumexp(wide, axis=axis))
    assert_close(jax.nn.softmax(x), special.softmax(wide, axis=-1))
    kept = draw(3, 4, 5, seed=1) > 0
    kept[..., 0] = True
    assert_close(jax.nn.softmax(x, where=kept), special.softmax(np.where(kept, wide, -np.inf), axis=-1))
    assert_close(jax.nn.softmax(np.float32([1e4, 0, -1e4])), np.array([1.0, 0, 0]))
    assert_close(jax.nn.log_softmax(np.float32([1e4, 0])), np.array([0, -1e4]))
    weights = draw(5)
    p = special.softmax(wide[0, 0])
    gradient = jax.grad(lambda x: (jax.nn.softmax(x) * weights).sum())(x[0, 0])
    assert_close(gradient, p * (weights - (p * weights).sum()))


def test_softmax_in_bfloat16() -> None:
    x = jnp.asarray(2 * draw(16, 128), jnp.bfloat16)
    y = jax.nn.softmax(x)
    assert y.dtype == jnp.bfloat16
    # The distance to the largest is rounded; then the exponential, the sum of float32 and the quotient are.
    distance = np.asarray((x - x.max(-1, keepdims=True)).astype(jnp.float32), np.float64)
    expected = np.exp(distance) / np.exp(distance).sum(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(y.astype(jnp.float32)), expected, rtol=3 * BFLOAT16)


def test_one_hot() -> None:
    labels = np.array([[0, 2], [1, 5]])
    expected = (labels[..., None] == np.arange(3)).astype(np.float32)
    assert_same(jax.nn.one_hot(labels, 3), expected)
    assert_same(jax.nn.one_hot(labels, 3, axis=0), np.moveaxis(expected, -1, 0))
    assert jax.nn.one_hot(labels, 3, dtype=jnp.int32).dtype == jnp.int32
    assert jax.nn.one_hot(labels, 3).dtype == jnp.float32


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (4, 6), (6, 4)])
def test_dot_product_attention(queries: int, keys: int) -> None:
    q, k, v = draw(2, queries, 4, 8), draw(2, keys, 4, 8, seed=1), draw(2, keys, 4, 8, seed=2)
    causal = np.tril(np.ones((queries, keys), bool))  # the first query sees the first key, whatever their numbers
    assert_close(jax.nn.dot_product_attention(q, k, v), attend(q, k, v), 5e-6)
    assert_close(jax.nn.dot_product_attention(q, k, v, is_causal=True), attend(q, k, v, causal), 5e-6)
    mask, bias = causal[None, None], draw(2, 4, queries, keys)
    assert_close(jax.nn.dot_product_attention(q, k, v, mask=mask), attend(q, k, v, causal), 5e-6)
    assert_close(jax.nn.dot_product_attention(q, k, v, bias=bias, scale=0.2), attend(q, k, v, None, bias, 0.2), 5e-6)
    grouped = jax.nn.dot_product_attention(q, k[:, :, :2], v[:, :, :2], is_causal=True)
    assert_close(grouped, attend(q, k[:, :, :2], v[:, :, :2], causal), 5e-6)
    lengths = np.array([keys, 3])
    short = np.arange(keys) < lengths[:, None, None, None]
    seen = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths)
    assert_close(seen, attend(q, k, v, short), 5e-6)
    distance = np.arange(keys) - np.arange(queries)[:, None]
    for window, left, right in ((2, 2, 2), ((1, 2), 1, 2), ((3, 0), 3, 0)):
        local = (-left <= distance) & (distance <= right)
        seen = jax.nn.dot_product_attention(q, k, v, local_window_size=window)
        assert_close(seen[:, :keys], attend(q, k, v, local)[:, :keys], 5e-6)  # a later query may see no key


def test_dot_product_attention_in_bfloat16() -> None:
    q, k, v = (jnp.asarray(draw(4, 64, 2, 16, seed=seed), jnp.bfloat16) for seed in (1, 2, 3))
    y = jax.nn.dot_product_attention(q, k, v)
    assert y.dtype == jnp.bfloat16
    wide = [np.asarray(x.astype(jnp.float32), np.float64) for x in (q, k, v)]
    error = np.asarray(y.astype(jnp.float32)) - attend(*wide)
    # The softmax is one of float32; only the weights, each by at most 2**-8 of it, and the result are rounded.
    assert np.abs(error).max() < 2 * BFLOAT16
    assert np.sqrt((error**2).mean()) < 1e-3


INITIALIZERS: dict[str, tuple[Any, float]] = {
    "lecun_normal": (jax.nn.initializers.lecun_normal(), 1 / 200),
    "lecun_uniform": (jax.nn.initializers.lecun_uniform(), 1 / 200),
    "he_normal": (jax.nn.initializers.he_normal(), 2 / 200),
    "kaiming_uniform": (jax.nn.initializers.kaiming_uniform(), 2 / 200),
    "xavier_uniform": (jax.nn.initializers.xavier_uniform(), 2 / 500),
    "glorot_normal": (jax.nn.initializers.glorot_normal(), 2 / 500),
    "normal": (jax.nn.initializers.normal(0.02), 0.0004),
    "normal by default": (jax.nn.initializers.normal(), 0.0001),
    "truncated_normal": (jax.nn.initializers.truncated_normal(0.02), 0.0004 * 0.87962566**2),
    "uniform": (jax.nn.initializers.uniform(0.3), 0.3**2 / 12),
    "fan_in": (jax.nn.initializers.variance_scaling(2.0, "fan_in", "truncated_normal"), 2 / 200),
    "fan_out": (jax.nn.initializers.variance_scaling(3.0, "fan_out", "normal"), 3 / 300),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name: str) -> None:
    initializer, variance = INITIALIZERS[name]
    values = np.asarray(initializer(jax.random.key(0), (200, 300), jnp.float32), np.float64)
    assert values.var() / variance == pytest.approx(1, abs=5 * np.sqrt(2 / values.size))
    middle = 0.15 if name == "uniform" else 0.0
    assert values.mean() == pytest.approx(middle, abs=5 * np.sqrt(variance / values.size))


def test_orthogonal_and_constant_initializers() -> None:
    initializers, key = jax.nn.initializers, jax.random.key(0)
    q = np.asarray(initializers.orthogonal(2.0)(key, (6, 4), jnp.float32))
    assert_close(q.T @ q, 4 * np.eye(4), 5e-6)
    for make, value in ((initializers.zeros, 0.0), (initializers.ones, 1.0), (initializers.constant(3.0), 3.0)):
        assert_same(make(key, (2,), jnp.float32), np.full(2, value, np.float32))
