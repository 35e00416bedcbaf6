"""Two equal loops and a conditional, of which XLA makes CUDA graphs: what `loops.xplane.pb.xz` was recorded of."""

import jax
import jax.numpy as jnp


def run_layers(weights: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0]


@jax.jit
def step(first: jax.Array, second: jax.Array, x: jax.Array) -> jax.Array:
    x = run_layers(first, x)
    x = run_layers(second, x)
    x = jax.lax.cond(x[0, 0] < 2, lambda x: x @ x @ x, jnp.sin, x)
    return x @ x


if __name__ == "__main__":
    x = jax.random.normal(jax.random.key(0), (1024, 1024)) / 64
    weights = jnp.stack([x] * 5)
    for number in range(5):
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            step(weights, weights + number, x).block_until_ready()
