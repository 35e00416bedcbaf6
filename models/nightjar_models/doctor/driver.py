"""Version of the loaded NVIDIA driver, read from the kernel without JAX or nvidia-smi."""

from __future__ import annotations

import re
from pathlib import Path


def read_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the loaded NVIDIA driver, or None if none is loaded."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module\b.*?\s(\d+\.\d[\d.]*)\s", text)
    if match:
        return match[1]
    return None
