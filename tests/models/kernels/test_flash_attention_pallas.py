"""Flash attention in Pallas, interpreted on this machine: result and gradients are those of plain attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.aot.topology import name_device
from nightjar_models.hardware.target import parse_cluster
from nightjar_models.kernels.flash_attention_pallas import BLOCK, attention, compiled, make_arguments


def draw(dtype: str, positions: int = 2 * BLOCK) -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    return tuple(jax.random.normal(key, (2, positions, 2, 16), dtype) for key in keys)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 3e-2)])
def test_result_and_gradients_are_those_of_plain_attention(dtype: str, tolerance: float, causal: bool) -> None:
    *arguments, dy = draw(dtype)

    def plain(*arguments: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*(x.astype(jnp.float32) for x in arguments), is_causal=causal)

    y, backward = jax.vjp(lambda *given: attention(*given, causal), *arguments)
    expected, plain_backward = jax.vjp(plain, *arguments)
    found, right = (y, *backward(dy)), (expected, *plain_backward(dy.astype(jnp.float32)))
    assert {value.dtype.name for value in found} == {dtype}
    for value, wanted in zip(found, right, strict=True):
        largest = np.abs(np.asarray(wanted, np.float32)).max()
        np.testing.assert_allclose(value.astype(jnp.float32), wanted.astype(jnp.float32), atol=tolerance * largest)


def test_large_scores_overflow_nothing() -> None:
    query, key, value, _ = draw("float32", BLOCK)
    found = attention(1e4 * query, key, value)
    np.testing.assert_allclose(found[:, 0], value[:, 0], rtol=1e-6)  # the first position sees itself alone
    assert np.isfinite(found).all()


def test_positions_that_fill_no_block_are_an_error() -> None:
    query, key, value, _ = draw("float32", BLOCK + 1)
    with pytest.raises(ValueError, match="expected three equal ones with a multiple of 64 positions"):
        attention(query, key, value)


@pytest.mark.parametrize("shape", [(0, BLOCK, 2, 16), (2, 0, 2, 16)])
def test_no_examples_or_positions_have_an_empty_result_and_gradient(shape: tuple[int, ...]) -> None:
    y, backward = jax.vjp(attention, *3 * [jnp.ones(shape)])
    assert {y.shape, *(gradient.shape for gradient in backward(y))} == {shape}


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since JAX 0.12
def test_for_a_gpu_pallas_makes_three_kernels_of_triton() -> None:
    program: Any = compiled
    with name_device(parse_cluster("h100")):  # JAX 0.12 asks which
        text = program.trace(*make_arguments()).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 3  # forward, gradient of queries, of keys and values
