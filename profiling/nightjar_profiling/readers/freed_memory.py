"""Reuse of freed memory by the steps of a reader.

glibc returns large freed blocks to the system, and a new block then costs a page fault per page, unless a larger block
was freed before. These faults take a tenth of the time of reading millions of events, and more on a busy machine.

Source: mallopt(3), M_MMAP_THRESHOLD
"""

from __future__ import annotations

import numpy as np

KEPT_BYTES = 31 << 20  # largest block whose size glibc adopts as its threshold once it is freed


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks of up to KEPT_BYTES in this process; has no effect with another C library."""
    np.empty(KEPT_BYTES, np.uint8)
