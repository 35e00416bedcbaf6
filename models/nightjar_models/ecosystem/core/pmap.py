"""pmap cell: data-parallel gradients over eight devices, as programs wrote them before `jit` took shardings.

A second process has eight virtual CPUs, which it takes if there are no eight devices. When JAX drops `jax.pmap`, this
cell says so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from nightjar_models.ecosystem.cell import Check, Finding
from nightjar_models.measuring.result import Sample

DEVICES = 8
PROGRAM = """
import functools, json, time
import jax, jax.numpy as jnp
import numpy as np

count = 8
devices = jax.devices()
if len(devices) < count:
    devices = jax.devices("cpu")
devices = devices[:count]
random = np.random.default_rng(0)
weights = random.normal(size=(16,)).astype(np.float32)
x, y = random.normal(size=(count, 32, 16)).astype(np.float32), random.normal(size=(count, 32)).astype(np.float32)


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), devices=devices)
def step(weights, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return jax.lax.pmean((loss, gradient), "batch"), jax.lax.axis_index("batch")


(losses, gradients), numbers = step(weights, x, y)
miss = x.reshape(-1, 16).astype(np.float64) @ weights - y.reshape(-1)
wanted = 2 * x.reshape(-1, 16).T @ miss / miss.size
begin = time.perf_counter()
for _ in range(20):
    jax.block_until_ready(step(weights, x, y))
print(json.dumps({
    "loss": float(np.abs(np.asarray(losses) - np.mean(miss**2)).max()),
    "gradient": float(np.abs(np.asarray(gradients) - wanted).max()),
    "numbers": np.asarray(numbers).tolist(),
    "seconds": (time.perf_counter() - begin) / 20,
}))
"""


def find_error(stderr: str) -> str:
    """The line of a traceback that names the error: JAX writes a remark on hidden frames below it.

    >>> find_error("Traceback:\\nValueError: two\\n----\\nFor simplicity, JAX has removed frames.\\n")
    'ValueError: two'
    """
    lines = [line for line in stderr.splitlines() if line.strip()] or ["it ended without a message"]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)), lines[-1])


def run() -> Finding:
    """Runs the cell."""
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    environ = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(find_error(done.stderr))
    answer = json.loads(done.stdout.splitlines()[-1])
    right = answer["numbers"] == list(range(DEVICES))
    return Finding(
        checks=[
            Check(name="loss", value=answer["loss"], expected=0, tolerance=1e-5, why="the mean of all, in NumPy"),
            Check(name="gradient", value=answer["gradient"], expected=0, tolerance=1e-5, why="the same in NumPy"),
            Check(name="axis_index", value=right, expected=1, tolerance=0, why="each device has its number"),
        ],
        samples=[Sample(name="step_time", unit="s", better="lower", values=[answer["seconds"]])],
    )
