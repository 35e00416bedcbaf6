"""Cache cell: a second process takes every program from the persistent compilation cache, and says which one it lacks.

Source: docs.jax.dev, "Persistent compilation cache"; the events are those of `jax.monitoring`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from nightjar_models.ecosystem.cell import Check, Finding
from nightjar_models.measuring.result import Sample

PROGRAM = """
import json, sys, time
import jax, jax.numpy as jnp, optax
from flax import nnx

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
size = int(sys.argv[1])
begin = time.perf_counter()


@nnx.jit
def train(model, optimizer, x):
    loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, gradient)
    return loss


model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
loss = float(train(model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), jnp.ones((size, 16))))
hits, misses = (events.count(f"/jax/compilation_cache/cache_{what}") for what in ("hits", "misses"))
print(json.dumps([hits, misses, loss, time.perf_counter() - begin]))
"""


def run() -> Finding:
    """Runs the cell."""
    with tempfile.TemporaryDirectory() as folder:
        first, second, other = (_start(folder, size) for size in (8, 8, 9))
    hits, misses, loss, _ = first
    return Finding(
        checks=[
            Check(name="first_hits", value=hits, expected=0, tolerance=0, why="the cache is empty"),
            Check(name="first_misses", value=min(misses, 1), expected=1, tolerance=0, why="something is compiled"),
            Check(name="second_misses", value=second[1], expected=0, tolerance=0, why="everything is in the cache"),
            Check(name="second_hits", value=second[0], expected=misses, tolerance=0, why="what the first compiled"),
            Check(name="second_loss", value=second[2], expected=loss, tolerance=0, why="it is the same program"),
            Check(
                name="other_misses",
                value=min(other[1], 1),
                expected=1,
                tolerance=0,
                why="a batch of another size is another program",
            ),
        ],
        samples=[Sample(name="second_start_time", unit="s", better="lower", values=[second[3]])],
    )


def _start(folder: str, size: int) -> tuple[int, int, float, float]:
    """Hits, misses, loss and seconds of a process with this cache."""
    environ = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_ENABLE_COMPILATION_CACHE": "true",
    }
    command = [sys.executable, "-c", PROGRAM, str(size)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    hits, misses, loss, seconds = json.loads(done.stdout.splitlines()[-1])
    return hits, misses, loss, seconds
