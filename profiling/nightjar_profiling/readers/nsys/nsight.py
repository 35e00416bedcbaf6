"""Where is Nsight Systems on this machine?

In: the environment. Out: the path of `nsys`, which records programs and exports reports, or None.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

INSTALLED = ("opt/nvidia/nsight-systems/*/bin/nsys", "usr/local/cuda*/bin/nsys")  # where NVIDIA's packages put it


def find_nsys(environ: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """The path of `nsys`: on PATH, else the newest where NVIDIA installs it."""
    found = shutil.which("nsys", path=environ.get("PATH", os.defpath))
    installed = (sorted(root.glob(pattern), key=_version) for pattern in INSTALLED)
    return found or next((str(paths[-1]) for paths in installed if paths), None)


def _version(path: Path) -> tuple[int, ...]:
    """The numbers in a path: 2024.10 is newer than 2024.9."""
    return tuple(map(int, re.findall(r"\d+", str(path))))
