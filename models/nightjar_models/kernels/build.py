"""Builds of the kernels: compiled by the system's compiler at first use, then cached.

In: a source in this folder and a platform. Out: a shared library in the user's cache folder, named by the digest of
source, compiler and XLA's headers, so a new JAX triggers a new build. Two processes that build at once each rename a
whole file into place.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nightjar_models.errors import ToolError

_SOURCES = Path(__file__).parent
# Sums may be reordered, so that they use vector instructions. Not -ffast-math: gcc before 13 then links code that makes
# the whole process flush denormal numbers to zero (gcc.gnu.org/bugzilla, 55522).
_COMPILERS = {
    "cpu": (".cc", "g++", ("-O3", "-fPIC", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")),
    "cuda": (".cu", "nvcc", ("-O3", "-Xcompiler", "-fPIC")),
}
_HINTS = {
    "cpu": "install it (apt-get install g++), or choose compute.norm=flax",
    "cuda": "install the CUDA toolkit and put nvcc on PATH, or choose compute.norm=pallas",
}


def cache_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightjar-models"


def build(name: str, platform: str, headers: str, folder: Path) -> Path:
    """Compiles a kernel unless it exists already.

    Args:
        name: of the source, without its ending.
        platform: `cpu` or `cuda`.
        headers: `jax.ffi.include_dir()`.

    """
    ending, compiler, options = _COMPILERS[platform]
    program = shutil.which(compiler)
    if program is None:
        raise ToolError(f"{name}{ending}: expected {compiler} on PATH to compile it, found none.", _HINTS[platform])
    source = _SOURCES / f"{name}{ending}"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    sizes = (f"{path.name} {path.stat().st_size}" for path in sorted(Path(headers).rglob("ffi/api/*.h")))
    parts = [source.read_text(), version, headers, *options, *sizes]  # XLA's headers change with jaxlib
    path = folder / f"{name}-{platform}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.so"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / path.name
        command = [program, *options, "-std=c++17", "-shared", f"-I{headers}", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            report = "\n".join(done.stderr.splitlines()[-20:])
            raise ToolError(f"{' '.join(command)}: ended with {done.returncode}:\n{report}", _HINTS[platform])
        made.replace(path)
    return path


@functools.cache
def load(name: str, platform: str) -> ctypes.CDLL:
    """The library of a kernel, built if needed, as a handle on its symbols."""
    import jax

    return ctypes.CDLL(str(build(name, platform, jax.ffi.include_dir(), cache_folder(os.environ))))
