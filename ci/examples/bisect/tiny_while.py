"""How long does one turn of a `lax.while_loop` with a tiny body take? Prints `us_per_turn=`; lower is better.

Orders of magnitude slower from one JAX release to the next, and mended some releases later (jax-ml/jax#25190):
docs/bisect.md finds both.
"""

import time

import jax
import jax.numpy as jnp

TURNS = 20_000


@jax.jit
def count(limit: jax.Array) -> jax.Array:
    """Counts up to a limit that the compiler does not know."""
    counted: jax.Array = jax.lax.while_loop(lambda n: n < limit, lambda n: n + 1, jnp.int32(0))
    return counted


def main() -> None:
    """Prints the best of some runs: what else runs on the machine only ever adds."""
    limit = jnp.int32(TURNS)
    count(limit).block_until_ready()
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter()
        count(limit).block_until_ready()
        best = min(best, time.perf_counter() - start)
    print(f"us_per_turn={best / TURNS * 1e6:.4f}")


if __name__ == "__main__":
    main()
