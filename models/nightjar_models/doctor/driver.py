"""Which NVIDIA driver is loaded? Asked of the kernel, so that neither JAX nor nvidia-smi is needed."""

from __future__ import annotations

import re
from pathlib import Path


def read_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the loaded NVIDIA driver, or None where there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module\b.*?\s(\d+\.\d[\d.]*)\s", text)
    return found[1] if found else None
