"""Flax's products in FP8 with delayed scaling, emulated on this machine, against the rounding of `ml_dtypes`.

Factors are divided by a scale and rounded to float8_e4m3fn, gradients that go backwards to float8_e5m2. The next scale
is the largest value of the history over the largest number of the type; the "gradient" of scale and history is their
next value. All scales here are powers of two, so that only the casts round.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1; flax.readthedocs.io, "User Guide on Using
FP8".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.linen import fp8_ops

from nightjar_models.conformance.agreement import BFLOAT16, assert_same, draw

LARGEST = {"input": 448.0, "kernel": 448.0, "output_grad": 57344.0}
COLLECTION = fp8_ops.OVERWRITE_WITH_GRADIENT
MATRIX = (((1,), (0,)), ((), ()))


def draw_factor(*shape: int, seed: int, largest: float) -> Any:
    """Numbers of bfloat16, of which the largest is given."""
    values = draw(*shape, seed=seed)
    values = np.clip(values * largest / 4, -largest, largest)
    values.flat[3] = -largest
    return jnp.asarray(values, jnp.bfloat16)


def round_to(values: Any, kind: Any, scale: float) -> Any:
    """The values as FP8 keeps them, in float64."""
    scaled = np.asarray(values.astype(jnp.float32)) / scale
    return scaled.astype(kind).astype(np.float64) * scale


def make_state(history: dict[str, float]) -> dict[str, Any]:
    """Scales of one, and histories with one value."""
    scales = {f"{name}_scale": jnp.ones(1) for name in LARGEST}
    return scales | {f"{name}_amax_history": jnp.zeros(1024).at[0].set(value) for name, value in history.items()}


def product(state: Any, x: Any, w: Any, kind: str = "Fp8DirectDotGeneralOp") -> Any:
    operation, variables = getattr(fp8_ops, kind)(), {COLLECTION: state}
    if kind == "Fp8Einsum":
        return operation.apply(variables, "ij,jk->ik", x, w)
    return operation.apply(variables, x, w, MATRIX)


@pytest.mark.filterwarnings("ignore:The Fp8DotGeneralOp is deprecated")  # people still use it
@pytest.mark.parametrize("power", [-3, 0, 4])
@pytest.mark.parametrize("kind", ["Fp8DirectDotGeneralOp", "Fp8DotGeneralOp", "Fp8Einsum"])
def test_product_gradients_and_next_scales(kind: str, power: int) -> None:
    history = {name: largest * 2.0**power for name, largest in LARGEST.items()}
    scale = 2.0**power
    x = draw_factor(6, 32, seed=1, largest=448 * scale)
    w = draw_factor(32, 5, seed=2, largest=448 * scale)
    dy = draw_factor(6, 5, seed=3, largest=57344 * scale)
    y, pull = jax.vjp(lambda *given: product(*given, kind=kind), make_state(history), x, w)
    state, dx, dw = pull(dy)
    x8, w8 = (round_to(values, ml_dtypes.float8_e4m3fn, scale) for values in (x, w))
    dy8 = round_to(dy, ml_dtypes.float8_e5m2, scale)
    for result, left, right in ((y, x8, w8), (dx, dy8, w8.T), (dw, x8.T, dy8)):
        # The product is rounded to bfloat16 once; sums of float32 lose terms that are small against their largest.
        slack = 1e-6 * (np.abs(left) @ np.abs(right))
        error = np.abs(np.asarray(result.astype(jnp.float32), np.float64) - left @ right)
        assert result.dtype == jnp.bfloat16
        assert (error <= BFLOAT16 * np.abs(left @ right) + slack).all()
    for name, values in (("input", x), ("kernel", w), ("output_grad", dy)):
        assert_same(np.asarray(state[f"{name}_scale"]), np.float32([scale]))
        first = np.asarray(state[f"{name}_amax_history"])[:2]
        assert first[0] == float(jnp.abs(values).max())


def test_the_scale_follows_the_largest_of_the_history() -> None:
    state = make_state(dict.fromkeys(LARGEST, 0.0))
    x, w = (draw_factor(4, 4, seed=seed, largest=3.5) for seed in (4, 5))
    for factor, expected in ((1.0, 1.0), (4.0, 3.5 / 448), (1.0, 14.0 / 448), (1.0, 14.0 / 448)):
        state = jax.grad(lambda state, x: product(state, x, w).astype(jnp.float32).sum())(state, x * factor)
        assert float(state["input_scale"][0]) == expected
    assert float(state["kernel_scale"][0]) == 3.5 / 448


def test_what_is_too_large_is_clipped() -> None:
    state = make_state(dict.fromkeys(LARGEST, 0.0))
    large = jnp.full((2, 2), 1000.0, jnp.bfloat16)
    y = product(state, large, jnp.eye(2, dtype=jnp.bfloat16))
    assert_same(np.asarray(y.astype(jnp.float32)), np.full((2, 2), 448.0, np.float32))
