"""The machine on which a program was captured, and the settings it ran under.

In: the root of the file system, and the environment. Out: names and versions as text, and the variables that change
what the devices do. Only variables of known families are taken, and none whose name suggests a secret, because captures
are shared.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path

NOTED_VARIABLES = (
    *("XLA_", "JAX_", "NCCL_", "CUDA_", "LIBTPU_INIT_ARGS", "NVIDIA_VISIBLE_DEVICES"),
    *("NVIDIA_TF32_OVERRIDE", "TF_GPU_ALLOCATOR", "OMP_NUM_THREADS", "MALLOC_", "GLIBC_TUNABLES"),
)
"""Beginnings of their names."""
SECRETS = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY")


def find_flags(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, by name.

    >>> find_flags({"CUDA_VISIBLE_DEVICES": "0", "JAX_SERVICE_TOKEN": "x", "HOME": "/root"})
    {'CUDA_VISIBLE_DEVICES': '0'}
    """
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(NOTED_VARIABLES) and not SECRETS.search(name)
    }


def describe_machine(root: Path = Path("/")) -> dict[str, str]:
    """Host name, processor and NVIDIA driver, as far as the machine tells them."""
    facts = {
        "host": platform.node(),
        "cpu": _search(root / "proc" / "cpuinfo", r"^(?:model name|Model)\s*:\s*(.+)$"),
        "driver": _search(root / "proc" / "driver" / "nvidia" / "version", r"Kernel Module.*?\s(\d+\.\d[\d.]*)"),
    }
    return {name: value for name, value in facts.items() if value}


def _search(path: Path, pattern: str) -> str:
    """The first part of a text file that a pattern names; empty where there is none."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    if match:
        return match[1].strip()
    return ""
