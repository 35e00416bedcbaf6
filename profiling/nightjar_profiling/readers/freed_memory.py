"""How is memory that one step of a reader lets go at hand for the next?

glibc gives large freed pieces back to the system, and each new one costs a fault for every page, unless a larger one
was freed before: a tenth of the time of millions of events, and more on a busy machine.

Source: mallopt(3), M_MMAP_THRESHOLD
"""

from __future__ import annotations

import numpy as np

KEPT_BYTES = 31 << 20  # the largest piece, once freed, whose size glibc learns


def keep_freed_memory() -> None:
    """Lets this process keep pieces of up to that size when they are freed; with another C library, does nothing."""
    np.empty(KEPT_BYTES, np.uint8)
