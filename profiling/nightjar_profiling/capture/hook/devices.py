"""The devices of a traced program: waiting for them, and the driver of CUDA.

Standard library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys


def wait_for_devices() -> None:
    """Blocks until everything that the program has dispatched is computed, without a computation of its own."""
    jax = sys.modules["jax"]
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # deleted or donated since, or the error of the program itself
            array.block_until_ready()
    jax.effects_barrier()


def call_driver(name: str) -> None:
    """Calls a function of the CUDA driver that takes nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise OSError(f"nsys is told of steps through the driver of a GPU, and there is none ({error})") from None
    code = getattr(driver, name)()
    if code:
        raise OSError(f"{name} gave CUDA error {code}")
