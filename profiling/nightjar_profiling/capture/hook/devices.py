"""The devices of a traced program: waiting for them, a CPU's peak rates, and the driver of CUDA.

Standard library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from typing import Any


def wait_for_devices() -> None:
    """Blocks until everything that the program has dispatched is computed, without a computation of its own."""
    jax = sys.modules["jax"]
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # deleted or donated since, or the error of the program itself
            array.block_until_ready()
    jax.effects_barrier()


def measure_peak() -> dict[str, Any] | None:
    """XLA's peak rates on this CPU: flops/s in a product of float32 matrices, bytes/s in a sum over an array.

    None on another device. A fifth of a second each, of which the fastest run counts.
    """
    jax = sys.modules["jax"]
    if any(device.platform != "cpu" for device in jax.local_devices()):
        return None
    side, length = 1024, 1 << 25
    rates = []
    for compute, shape, work in (
        (lambda a: a @ a, (side, side), 2 * side**3),
        (lambda a: a + 1, (length,), 2 * 4 * length),  # read and written
    ):
        array, run = jax.numpy.ones(shape, "float32"), jax.jit(compute)
        jax.block_until_ready(run(array))
        best_s, until = float("inf"), time.perf_counter() + 0.2
        while time.perf_counter() < until:
            start = time.perf_counter()
            jax.block_until_ready(run(array))
            best_s = min(best_s, time.perf_counter() - start)
        rates.append(work / best_s)
    return {"flops_per_s": {"f32": rates[0]}, "bytes_per_s": rates[1]}


def call_driver(name: str) -> None:
    """Calls a function of the CUDA driver that takes nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise OSError(f"nsys is told of steps through the driver of a GPU, and there is none ({error})") from None
    code = getattr(driver, name)()
    if code:
        raise OSError(f"{name} gave CUDA error {code}")
