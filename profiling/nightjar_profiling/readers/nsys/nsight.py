"""The path of Nsight Systems on this machine.

In: the environment. Out: the path of `nsys`, which records programs and exports reports, or None.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

INSTALLED = ("opt/nvidia/nsight-systems/*/bin/nsys", "usr/local/cuda*/bin/nsys")  # of NVIDIA's packages


def find_nsys(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Finds `nsys`: on PATH, otherwise the newest version in NVIDIA's install folders."""
    on_path = shutil.which("nsys", path=environ.get("PATH", os.defpath))
    installed = (sorted(root.glob(pattern), key=_version) for pattern in INSTALLED)
    return on_path or next((str(paths[-1]) for paths in installed if paths), None)


def _version(path: Path) -> tuple[int, ...]:
    """The numbers in a path, so that 2024.10 sorts after 2024.9."""
    return tuple(map(int, re.findall(r"\d+", str(path))))
