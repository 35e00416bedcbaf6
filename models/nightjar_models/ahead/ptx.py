"""How large is the code of a program, and do its kernels spill registers?

In: the PTX files that the compiler dumped. Out: their size, and the bytes that ptxas spills to memory, where there is a
ptxas (of a CUDA toolkit on PATH, or of the package nvidia-cuda-nvcc).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_TIMEOUT_S = 300


def find_ptxas() -> str | None:
    """The path of ptxas, or None."""
    site = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    packaged = sorted(site.glob("cuda_nvcc/bin/ptxas")) + sorted(site.glob("cu*/bin/ptxas"))
    return shutil.which("ptxas") or next((str(path) for path in packaged), None)


def count_spills(texts: Iterable[Path], capability: str, ptxas: str) -> int | None:
    """Bytes that the kernels store and load for want of registers; None where ptxas refuses a file.

    Args:
        texts: PTX files.
        capability: such as `9.0a`.
        ptxas: its path.
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
