"""Export cell: a training step is saved with `jax.export` and called again, here and by later releases.

`step-0.10.2.bin` was written by `python -m nightjar_models.ecosystem.core.export` with JAX 0.10.2. JAX promises that
what a release saves can be called for at least six months after it.

Source: docs.jax.dev, "Exporting and serializing staged-out computations", compatibility guarantees.
"""

from __future__ import annotations

import functools
from pathlib import Path

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

SAVED = Path(__file__).with_name("step-0.10.2.bin")
INPUTS, RATE, DECAY = 16, 0.1, 0.9


def save_step() -> bytearray:
    """A step of least squares with momentum, for batches of any size, and its derivative."""
    import jax
    import jax.numpy as jnp
    from jax import export

    def step(weights, momentum, x, y):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        momentum = DECAY * momentum + gradient
        return weights - RATE * momentum, momentum, loss

    (batch,) = export.symbolic_shape("batch")
    shapes = [(INPUTS,), (INPUTS,), (batch, INPUTS), (batch,)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return export.export(jax.jit(step), platforms=["cpu", "cuda"])(*arguments).serialize(vjp_order=1)


def run() -> Finding:
    """Runs the cell."""
    import jax
    import numpy as np
    from jax import export

    random = np.random.default_rng(0)
    weights, momentum = random.normal(size=(2, INPUTS)).astype(np.float32)
    checks, samples = list[Check](), []
    for name, data in (("now", save_step()), ("release_0.10.2", bytearray(SAVED.read_bytes()))):
        saved = export.deserialize(data)
        call = jax.jit(saved.call)
        worst = 0.0
        for size in (8, 96):
            x, y = random.normal(size=(size, INPUTS)).astype(np.float32), random.normal(size=size).astype(np.float32)
            got = call(weights, momentum, x, y)
            miss = x.astype(np.float64) @ weights - y
            moved = DECAY * momentum + 2 * x.T @ miss / size
            wanted = (weights - RATE * moved, moved, np.mean(miss**2))
            errors = [np.abs(np.asarray(one) - other).max() for one, other in zip(got, wanted, strict=True)]
            worst = float(np.max([worst, *errors]))  # which keeps NaN
        checks.append(Check(name=f"step_{name}", value=worst, expected=0, tolerance=1e-5, why="the same in NumPy"))
        gradient = jax.grad(lambda w, call=call, x=x, y=y: call(w, momentum, x, y)[2])(weights)
        error = float(np.abs(np.asarray(gradient) - 2 * x.T @ miss / size).max())
        checks.append(Check(name=f"gradient_{name}", value=error, expected=0, tolerance=1e-5, why="the same in NumPy"))
        if name == "now":
            samples = time_calls(
                functools.partial(jax.jit(saved.call), weights, momentum, x, y), items=1, unit="steps/s"
            )
    return Finding(checks=checks, samples=samples)


if __name__ == "__main__":
    SAVED.write_bytes(save_step())
