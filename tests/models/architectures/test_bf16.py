"""In bfloat16 softmax, norms' statistics and the loss stay in float32; what does not is told from rounding.

A bound is what rounding to bfloat16 costs, which has eight binary digits. Beside each check stands the fault that it
has to tell, and the same check has to refuse that.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.architectures import layers
from nightjar_models.presets.config import Compute
from tests.models.architectures import numpy_layers

BF16 = Compute(dtype="bf16")
DIGIT = 2.0**-8  # rounding to bfloat16 moves a number by at most this share of it
Layer = Callable[..., jax.Array]


def draw(*shape: int, seed: int, mean: float = 0.0, size: float = 1.0) -> jax.Array:
    values = mean + size * np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.bfloat16)


def exact(x: jax.Array) -> NDArray[np.float64]:
    return np.asarray(x.astype(jnp.float32), np.float64)


def is_rounded_once(result: jax.Array, expected: Any) -> bool:
    assert result.dtype == jnp.bfloat16
    return bool((np.abs(exact(result) - expected) <= DIGIT * np.abs(expected)).all())


def softmax_in_bf16(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    scores = jnp.einsum("bthk,bshk->bhts", query, key) * jnp.asarray(query.shape[-1] ** -0.5, jnp.bfloat16)
    powers = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True, dtype=jnp.bfloat16)
    return jnp.einsum("bhts,bshk->bthk", weights, value)


def with_temperature(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return layers.attend(query, key, value, how="xla", scale=query.shape[-1] ** -0.5 / 1.1)


def find_error(attention: Layer) -> float:
    """The root mean square of attention's error over that of its result, with 256 positions."""
    query, key = draw(2, 256, 2, 16, seed=0, size=2.0), draw(2, 256, 2, 16, seed=1)
    value = draw(2, 256, 2, 16, seed=2, mean=1.0)
    expected = numpy_layers.attend(exact(query), exact(key), exact(value), scale=0.25)
    error = exact(attention(query, key, value)) - expected
    return float(np.sqrt((error**2).mean() / (expected**2).mean()))


@pytest.mark.parametrize(
    "attention", [layers.make_attention(BF16), lambda *x: layers.attend(*x, how="xla")], ids=["flax", "switch"]
)
def test_attention_in_bf16_errs_by_the_rounding_of_weights_and_result(attention: Layer) -> None:
    # NumPy with the same two roundings errs by 0.47 of a digit, with rounded scores by 0.67.
    assert find_error(attention) < DIGIT / 2


@pytest.mark.parametrize("fault", [softmax_in_bf16, with_temperature])
def test_attention_with_a_fault_errs_by_more(fault: Layer) -> None:
    assert find_error(fault) > DIGIT


def rms_norm_in_bf16(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True, dtype=jnp.bfloat16) + layers.EPSILON)


def layer_norm_in_bf16(x: jax.Array) -> jax.Array:
    mean = x.mean(axis=-1, keepdims=True, dtype=jnp.bfloat16)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True, dtype=jnp.bfloat16)
    return (x - mean) * jax.lax.rsqrt(variance + layers.EPSILON)


def test_an_rms_norm_in_bf16_is_rounded_once_and_statistics_in_bf16_are_told() -> None:
    x = draw(64, 96, seed=3, mean=0.5)
    expected = numpy_layers.rms_norm({"scale": 1.0}, exact(x))
    assert is_rounded_once(layers.make_rms_norm(96, BF16, nnx.Rngs(0))(x), expected)
    assert not is_rounded_once(rms_norm_in_bf16(x), expected)


def test_a_layer_norm_in_bf16_is_rounded_once_and_statistics_in_bf16_are_told() -> None:
    x = draw(64, 96, seed=4, mean=4.0)
    expected = numpy_layers.layer_norm({"scale": 1.0, "bias": 0.0}, exact(x))
    norm = nnx.LayerNorm(96, epsilon=layers.EPSILON, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    # A variance as mean of squares less squared mean loses four digits in float32, seen where a result is near zero.
    result = norm(x)
    close = np.abs(exact(result) - expected) <= DIGIT * np.abs(expected) + 1e-4
    assert close.all()
    faulty = np.abs(exact(layer_norm_in_bf16(x)) - expected) <= DIGIT * np.abs(expected) + 1e-4
    assert not faulty.all()
