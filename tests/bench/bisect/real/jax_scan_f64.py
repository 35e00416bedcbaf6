"""How long does a step of a scan over 3x3 matrices of float64 take (jax-ml/jax#36799)? Prints `us_per_step=`."""

import time

import jax
import jax.numpy as jnp

STEPS = 5000
jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]


@jax.jit
def roll(matrix: jax.Array, start: jax.Array) -> jax.Array:
    product: jax.Array = jax.lax.scan(lambda carry, _: (carry @ matrix, None), start, length=STEPS)[0]
    return product


matrix, ones = jnp.eye(3) * 0.999, jnp.ones((3, 3))
roll(matrix, ones).block_until_ready()
best = float("inf")
for _ in range(20):
    start = time.perf_counter()
    roll(matrix, ones).block_until_ready()
    best = min(best, time.perf_counter() - start)
print(f"us_per_step={best / STEPS * 1e6:.4f}")
