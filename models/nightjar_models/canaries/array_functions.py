"""Functions of arrays whose values or shapes are wrong: `jax.numpy`, `jax.random`, compiled products, narrow floats."""

from __future__ import annotations

import io
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from nightjar_models.canaries.entry import Canary

ROWS = 32_769  # right with 16,385 and wrong from 32,769 on
LARGEST = 2**31 - 1


def square_last_row() -> object:
    """The squared length of the last of many rows, which an identity matrix multiplies."""
    numbers = np.arange(ROWS, dtype=np.float32)
    rows = np.stack([numbers, np.zeros_like(numbers), np.zeros_like(numbers)], axis=1)
    identity = np.eye(3, dtype=np.float32)
    return jax.jit(jax.vmap(lambda row: jnp.sum((identity @ row) ** 2)))(rows)[-1]


def reload_narrow_floats() -> object:
    """The number of one type of float8 that comes back from an npy file as itself."""
    file = io.BytesIO()
    np.save(file, np.ones(1, ml_dtypes.float8_e4m3fn))
    file.seek(0)
    return np.load(file).dtype == ml_dtypes.float8_e4m3fn


def refuse_empty_median() -> object:
    """Whether the median of no rows is refused with a ValueError; the defect is a TypeError from inside."""
    try:
        jnp.median(jnp.empty((0, 2)), axis=0)
    except ValueError:
        return True
    return False


CANARIES = (
    Canary(
        name="vmapped_product_rest",
        issue="jax-ml/jax#39103",
        compute=square_last_row,
        expected=float(ROWS - 1) ** 2,
        seen=("0.10.2",),
        right="0.12.0.1",
    ),
    Canary(
        name="unique_empty",
        issue="jax-ml/jax#40229",
        compute=lambda: jnp.unique(jnp.zeros((0, 0), jnp.int32), axis=0).shape,
        expected=[0, 0],
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="nanquantile_empty",
        issue="jax-ml/jax#39475",
        compute=lambda: jnp.nanquantile(jnp.empty((0, 2)), 0.5, axis=0),
        expected=[math.nan, math.nan],
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
        error=TypeError,
    ),
    Canary(
        name="median_empty",
        issue="jax-ml/jax#40320",
        compute=refuse_empty_median,
        expected=True,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
        error=TypeError,
    ),
    Canary(
        name="poisson_infinite_rate",
        issue="jax-ml/jax#38459",
        compute=lambda: jax.random.poisson(jax.random.key(0), jnp.inf),
        expected=LARGEST,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
    ),
    Canary(
        name="cov_empty",
        issue="jax-ml/jax#32296",
        compute=lambda: jnp.cov(jnp.array([])),
        expected=math.nan,
        seen=("0.6.0",),
        right="0.10.2",
    ),
    Canary(
        name="setdiff1d_shape",
        issue="jax-ml/jax#32402",
        compute=lambda: jnp.setdiff1d(jnp.zeros((1, 1)), jnp.zeros(1), assume_unique=True).shape,
        expected=[0],
        seen=("0.6.0",),
        right="0.10.2",
    ),
    Canary(
        name="matrix_power_bool",
        issue="jax-ml/jax#28603",
        compute=lambda: jnp.linalg.matrix_power(jnp.array([[True, True], [False, True]]), 2),
        expected=[[True, True], [False, True]],
        seen=("0.6.0",),
        right="0.10.2",
    ),
    Canary(
        name="mode_negative_axis",
        issue="jax-ml/jax#34486",
        compute=lambda: jax.scipy.stats.mode(jnp.array([[1, 1, 2], [3, 4, 4]]), axis=-1).mode,
        expected=[1, 4],
        seen=("0.6.0",),
        right="0.10.2",
        error=TypeError,
    ),
    Canary(
        name="float8_npy",
        issue="jax-ml/ml_dtypes#324",
        compute=reload_narrow_floats,
        expected=True,
        seen=(
            "0.5.1",
            "0.6.0",
        ),
        package="ml_dtypes",
    ),
    Canary(
        name="bfloat16_format",
        issue="jax-ml/ml_dtypes#134",
        compute=lambda: float(f"{ml_dtypes.bfloat16(1.5):.2f}"),
        expected=1.5,
        seen=("0.5.1",),
        right="0.6.0",
        package="ml_dtypes",
        error=ValueError,
    ),
)
