"""Why does a step on a CPU not pay for its memory anew? This process keeps what it frees.

XLA:CPU asks the C library for the temporary buffers of a program at each run. glibc gives pieces of more than 32 MiB
back to the system when they are freed, and each page of the next one costs a fault: 12,700 of them, a third of the CPU
time, in a step of `gpt_tiny` (52 MB of temporaries, jaxlib 0.10.2).

Threads of XLA are served from heaps of 64 MiB each. One that lies empty is given back as a whole, whatever the
threshold: where a thread's first heap is too full for a program's temporaries, each step pays for a second one anew
(1,000 to 10,600 faults a step, in about half of the runs of `gpt_tiny`, `llama_tiny` and `moe_tiny`). Room asked for
beyond each piece (M_TOP_PAD), if it is as large as a heap, keeps an empty one; nothing touches that room, so that it
costs addresses alone.

Larger pieces a thread takes from the system, whatever glibc is told. Each thread holds what it freed for itself, so a
process on a GPU, which has many threads and nothing to gain, is not told.

Source: mallopt(3); glibc's malloc/arena.c, HEAP_MAX_SIZE and heap_trim
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # M_TRIM_THRESHOLD and its like of malloc.h
HEAP_BYTES = 64 << 20  # of a thread
_TUNED = re.compile(r"mmap_max|mmap_threshold|trim_threshold|top_pad", re.IGNORECASE)  # as variables and as tunables


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Keeps freed memory in this process until it ends, and says whether it does.

    A process whose environment says when malloc gives memory back (`MALLOC_TRIM_THRESHOLD_` and its like, or their
    names in `GLIBC_TUNABLES`) is left as it is, as is one with another C library than glibc.
    """
    tuned = [name for name in environ if name.startswith("MALLOC_")] + [environ.get("GLIBC_TUNABLES", "")]
    if any(map(_TUNED.search, tuned)):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    wanted = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: HEAP_BYTES}
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in wanted.items())
