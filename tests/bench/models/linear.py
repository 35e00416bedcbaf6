"""A linear model's predictions: a loop over samples in PyTorch against `jax.jit(jax.vmap(...))`, and the fair version.

Talks show the first as a speed-up of thousands of times. Most of it is the loop: PyTorch that is given all samples at
once is within a small factor, ahead where a call takes a tenth of a millisecond and its fixed part counts. All figures
are published, and the goal is set for the program of the talks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tests.bench.table import Row

FEATURES, SAMPLES = (64, 784), 10_000
ROUNDS = 15
BLOCK_S = 0.01  # of calls of one kind in a round


def list_goals() -> list[str]:
    """The names of this part's goals."""
    loops = ("sample by sample", "sample by sample, torch.compile")
    sizes = [f"linear predict, {SAMPLES} x {features}: time over PyTorch" for features in FEATURES]
    return [f"{size} {loop}" for size in sizes for loop in loops]


def measure() -> list[Row]:
    """Both sizes of model."""
    return [row for features in FEATURES for row in measure_size(features)]


def measure_size(features: int) -> list[Row]:
    """JAX against PyTorch sample by sample, vectorised, and compiled."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(SAMPLES, features)).astype(np.float32), rng.normal(size=features).astype(np.float32)
    ours = jax.jit(jax.vmap(lambda w, b, x: jnp.dot(w, x) + b, in_axes=(None, None, 0)))
    jx, jw, jb = jnp.asarray(x), jnp.asarray(w), jnp.float32(0.5)
    tx, tw, tb = torch.from_numpy(x), torch.from_numpy(w), torch.tensor(0.5)
    compiled = torch.compile(lambda x, w, b: x @ w + b)
    compiled_one = torch.compile(lambda w, one, b: torch.dot(w, one) + b)
    with torch.no_grad():
        calls: dict[str, Callable[[], Any]] = {
            "ours": lambda: ours(jw, jb, jx).block_until_ready(),
            "sample by sample": lambda: torch.stack([torch.dot(tw, one) + tb for one in tx]),
            "sample by sample, torch.compile": lambda: torch.stack([compiled_one(tw, one, tb) for one in tx]),
            "vectorised": lambda: tx @ tw + tb,
            "vectorised, torch.compile": lambda: compiled(tx, tw, tb),
        }
        expected = np.asarray(calls["ours"]())
        for name, call in calls.items():
            np.testing.assert_allclose(np.asarray(call()), expected, rtol=1e-4, atol=1e-4, err_msg=name)
        counts = {name: max(1, round(BLOCK_S / time_calls(call, 1))) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name].append(time_calls(call, counts[name]))
    best = {name: 1e6 * statistics.median(found) for name, found in times.items()}
    title = f"linear predict, {SAMPLES} x {features}"
    loops = [name for name in calls if name.startswith("sample by sample")]
    return [
        *(
            Row(name=f"{title}: time over PyTorch {loop}", ours=best["ours"] / best[loop], goal=1.0, unit="x wall")
            for loop in loops
        ),
        *(
            Row(name=title, ours=best["ours"], unit="us", rival=f"PyTorch {name}", rival_value=best[name])
            for name in list(calls)[1:]
        ),
    ]


def time_calls(call: Callable[[], Any], count: int) -> float:
    """Seconds of one of so many calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count
