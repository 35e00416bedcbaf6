"""Derivatives that JAX or Optax gives as zero, infinite or NaN where the true one is an ordinary number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nightjar_models.canaries.entry import Canary

TAIL = 40.0  # exp(-40) is far above the smallest double, and 1 - exp(-40) rounds to 1
SIGMOID_SLOPE = math.exp(-TAIL) / (1 + math.exp(-TAIL)) ** 2
FEATURES = 70_000  # more than the largest float16, 65,504


def slope(function: Callable[[Any], Any], point: float) -> Any:
    """The derivative of a function of one number."""
    return jax.grad(function)(jnp.asarray(point))


def half_log_softmax() -> object:
    """Whether the gradient of a sum of float16 log-probabilities is finite."""
    with np.errstate(over="ignore"):  # the number of features as float16
        gradient = jax.grad(lambda x: jax.nn.log_softmax(x).sum())(jnp.linspace(0, 4, FEATURES, dtype=jnp.float16))
    return jnp.isfinite(gradient).all()


def slope_of_perturbed_identity() -> object:
    """The derivative of the identity, smoothed by noise; Optax 0.2.4 was looked at with the key after the number."""
    smooth = optax.perturbations.make_perturbed_fun(lambda x: x, num_samples=4000, sigma=0.1)
    return jax.grad(smooth, argnums=1)(jax.random.key(0), jnp.asarray(0.0))


CANARIES = (
    Canary(
        name="sigmoid_tail",
        issue="jax-ml/jax#40385",
        compute=lambda: slope(jax.nn.sigmoid, TAIL),
        expected=SIGMOID_SLOPE,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
        double=True,
    ),
    Canary(
        name="softplus_second",
        issue="jax-ml/jax#40387",
        compute=lambda: slope(jax.grad(jax.nn.softplus), TAIL),
        expected=SIGMOID_SLOPE,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
        double=True,
    ),
    Canary(
        name="tanh_tail",
        issue="jax-ml/jax#40343",
        compute=lambda: slope(jnp.tanh, TAIL / 2),
        expected=4 * SIGMOID_SLOPE,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
        double=True,
    ),
    Canary(
        name="selu_tail",
        issue="jax-ml/jax#39796",
        compute=lambda: slope(jax.nn.selu, -700.0),
        expected=1.0507009873554805 * 1.6732632423543772 * math.exp(-700),  # the paper's two constants
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
        double=True,
    ),
    Canary(
        name="expm1_tail",
        issue="jax-ml/jax#39794",
        compute=lambda: slope(jnp.expm1, -TAIL),
        expected=math.exp(-TAIL),
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
        double=True,
    ),
    Canary(
        name="exp2_overflow",
        issue="jax-ml/jax#40382",
        compute=lambda: slope(jnp.exp2, 1024.0000000000002),
        expected=math.log(2) * 2.0**1023 * 2,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
        double=True,
    ),
    Canary(
        name="i0_small",
        issue="jax-ml/jax#39797",
        compute=lambda: slope(jnp.i0, 1e-300),
        expected=5e-301,  # i1(x), near x / 2
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
        double=True,
    ),
    Canary(
        name="arcsinh_large",
        issue="jax-ml/jax#40634",
        compute=lambda: slope(jnp.arcsinh, 1e22),
        expected=1e-22,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="ldexp_zero",
        issue="jax-ml/jax#38001",
        compute=lambda: slope(lambda x: jnp.ldexp(x, 3), 0.0),
        expected=8.0,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="cholesky_upper",
        issue="jax-ml/jax#40421",
        compute=lambda: jax.grad(lambda a: jax.scipy.linalg.cholesky(a, lower=False).sum())(
            jnp.array([[4.0, 1.0], [1.0, 3.0]])
        )[1, 0],  # the lower half is never read
        expected=0.0,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="log_softmax_half",
        issue="jax-ml/jax#40409",
        compute=half_log_softmax,
        expected=True,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
    ),
    Canary(
        name="focal_loss_zero_gamma",
        issue="google-deepmind/optax#1267",
        compute=lambda: slope(lambda x: optax.losses.sigmoid_focal_loss(x, jnp.asarray(1.0), gamma=0.0), 1000.0),
        expected=0.0,
        seen=("0.2.4",),
        right="0.2.8",
        package="optax",
    ),
    Canary(
        name="perturbed_scale",
        issue="google-deepmind/optax#1308",
        compute=slope_of_perturbed_identity,
        expected=1.0,  # of the identity
        tolerance=0.2,  # of 4,000 samples; the defect is a factor of 10
        seen=("0.2.4",),
        right="0.2.8",
        package="optax",
    ),
)
