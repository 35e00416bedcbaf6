"""malloc settings under which a process on a CPU keeps freed memory, so that steps do not fault it in again.

XLA:CPU allocates the temporary buffers of a program at each run. glibc returns blocks of more than 32 MiB to the system
when they are freed, and each page of the next block costs a page fault: 12,700 faults, a third of the CPU time, in a
step of `gpt_tiny` (52 MB of temporaries, jaxlib 0.10.2).

glibc serves XLA's threads from heaps of 64 MiB each and returns an empty heap as a whole, whatever the threshold. Where
a thread's first heap is too full for a program's temporaries, each step allocates a second one (1,000 to 10,600 faults
a step, in about half of the runs of `gpt_tiny`, `llama_tiny` and `moe_tiny`). Padding as large as a heap (M_TOP_PAD)
keeps an empty one; nothing touches the padding, so it costs address space only.

A thread takes blocks larger than a heap from the system, whatever the settings. Each thread keeps what it freed to
itself, so a process on a GPU, with many threads and nothing to gain, is left alone.

Source: mallopt(3); glibc's malloc/arena.c, HEAP_MAX_SIZE and heap_trim
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # M_TRIM_THRESHOLD etc. of malloc.h
HEAP_BYTES = 64 << 20  # of a thread
_TUNED = re.compile(r"mmap_max|mmap_threshold|trim_threshold|top_pad", re.IGNORECASE)  # as variables and as tunables


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Keeps freed memory in this process until it ends; returns whether that was possible.

    Changes nothing if the environment already tunes when malloc returns memory (`MALLOC_TRIM_THRESHOLD_` and similar
    variables, or their names in `GLIBC_TUNABLES`), or if the C library is not glibc.
    """
    tuned = [name for name in environ if name.startswith("MALLOC_")] + [environ.get("GLIBC_TUNABLES", "")]
    if any(map(_TUNED.search, tuned)):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: HEAP_BYTES}
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in settings.items())
