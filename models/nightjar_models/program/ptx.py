"""Register spills of a program's kernels, as ptxas reports them.

In: the PTX files that the compiler dumped. Out: the bytes that ptxas spills to memory. The ptxas is the one that XLA
finds first: from the package nvidia-cuda-nvcc, else from a CUDA toolkit on PATH.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_TIMEOUT_S = 300


def find_ptxas() -> str | None:
    """The path of ptxas, or None."""
    spec = importlib.util.find_spec("nvidia")  # a namespace of many packages
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    for folder in folders:
        for path in (*sorted(Path(folder).glob("cu[0-9]*/bin/ptxas")), Path(folder, "cuda_nvcc", "bin", "ptxas")):
            if path.is_file():
                return str(path)
    return shutil.which("ptxas")


def count_spills(texts: Iterable[Path], capability: str, ptxas: str) -> int | None:
    """Bytes that the kernels store and load because of spilled registers; None if ptxas fails.

    Args:
        capability: such as `9.0a`.
    """
    total = 0
    for text in texts:
        if ".entry" not in text.read_text(encoding="utf-8", errors="replace"):
            continue
        argv = [ptxas, "-v", f"-arch=sm_{capability.replace('.', '')}", "-o", "/dev/null", str(text)]
        try:
            answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if answer.returncode:
            return None
        total += sum(int(number) for pair in _SPILL.findall(answer.stderr) for number in pair)
    return total
