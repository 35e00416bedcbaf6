"""Why does a step on a CPU not pay for its memory anew? This process keeps what it frees.

XLA:CPU asks the C library for the temporary buffers of a program at each run. glibc gives pieces of more than 32 MiB
back to the system when they are freed, and each page of the next one costs a fault: 12,700 of them, a third of the CPU
time, in a step of `gpt_tiny` (52 MB of temporaries, jaxlib 0.10.2).

glibc keeps up to 64 MiB for a thread of XLA and takes larger pieces from the system, whatever it is told. Each thread
holds what it freed for itself, so a process on a GPU, which has many threads and nothing to gain, is not told.

Source: mallopt(3); glibc's malloc/arena.c, HEAP_MAX_SIZE
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
_TUNED = re.compile(r"mmap_max|mmap_threshold|trim_threshold", re.IGNORECASE)  # as variables and as tunables


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Keeps freed memory in this process until it ends, and says whether it does.

    A process whose environment says when malloc gives memory back (`MALLOC_TRIM_THRESHOLD_` and its like, or their
    names in `GLIBC_TUNABLES`) is left as it is, as is one with another C library than glibc.
    """
    tuned = [name for name in environ if name.startswith("MALLOC_")] + [environ.get("GLIBC_TUNABLES", "")]
    if any(map(_TUNED.search, tuned)):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, -1))
