"""Why does a step on a CPU not pay for its memory anew? This process keeps what it frees.

XLA:CPU asks the C library for the temporary buffers of a program at each run. glibc gives pieces of more than 32 MiB
back to the system when they are freed, and each page of the next one costs a fault: 12,700 of them, a third of the CPU
time, in a step of `gpt_tiny` (52 MB of temporaries, jaxlib 0.10.2).

Threads of XLA hold up to 64 MiB each this way: glibc takes larger pieces from the system for them, whatever it is told.

Source: mallopt(3); glibc's malloc/arena.c, HEAP_MAX_SIZE
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Keeps freed memory in this process until it ends, and says whether it does.

    A process whose environment tunes malloc already (`MALLOC_*`, `GLIBC_TUNABLES`) is left as it is, as is one with
    another C library than glibc.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, -1))
