"""How long does one step of a `lax.scan` over 3 x 3 float64 matrices take? Prints `us_per_step=`; lower is better.

About four times slower from one JAX release to the next (jax-ml/jax#36799): docs/bisect.md finds which.
"""

import os
import time

os.environ["JAX_ENABLE_X64"] = "1"  # before JAX is imported

import jax
import jax.numpy as jnp

STEPS = 20_000


@jax.jit
def rotate(matrices: jax.Array) -> jax.Array:
    """The product of many matrices, one by one."""
    product: jax.Array
    product, _ = jax.lax.scan(lambda product, matrix: (matrix @ product, None), jnp.eye(3), matrices)
    return product


def main() -> None:
    """Prints the best of some runs: what else runs on the machine only ever adds."""
    matrices = jnp.broadcast_to(jnp.eye(3) * 0.9999, (STEPS, 3, 3))
    rotate(matrices).block_until_ready()
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter()
        rotate(matrices).block_until_ready()
        best = min(best, time.perf_counter() - start)
    print(f"us_per_step={best / STEPS * 1e6:.4f}")


if __name__ == "__main__":
    main()
