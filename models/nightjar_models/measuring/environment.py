"""Environment of a run: versions, processor, devices, flags, commit and image, which can change its measurements.

In: this process and machine. Out: the `environment` of a `nightjar.run/1` document.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from nightjar_models.doctor.gather import read_driver

IMAGE_VARIABLE = "NIGHTJAR_IMAGE"
_FLAGS = re.compile(r"XLA_FLAGS|LIBTPU_INIT_ARGS|JAX_\w+|NCCL_\w+|MALLOC_\w+|GLIBC_TUNABLES")
# XLA, Eigen and oneDNN choose kernels by these, and with the width of a vector the order of a sum changes.
_VECTORS = re.compile(r"sse4_2|avx\w*|amx_\w+|fma|f16c|asimd\w*|sve\w*|sme\d?|bf16|i8mm")
_PACKAGES = re.compile(
    r"jax|jaxlib|jax-cuda\d+-p\w+|libtpu|flax|optax|orbax-checkpoint|grain|numpy|scipy|scikit-learn|ml-dtypes"
    r"|nvidia-\w[\w-]*|transformer-engine[\w-]*|nightjar-models"
)


def read_environment() -> dict[str, Any]:
    """The environment of this process; the devices are the default JAX backend's."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}-{platform.machine()}",
        "cpu": read_cpu(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "packages": read_packages(),
        "flags": select_flags(os.environ),
        "git": read_git(Path.cwd()),
        "image": os.environ.get(IMAGE_VARIABLE) or None,
        "driver": read_driver(),
    }


def read_cpu() -> dict[str, Any]:
    """The processor, the cores that this process may use, and the machine's memory."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {**read_processor(text), "cores": cores, "memory_bytes": memory}


def read_processor(cpuinfo: str) -> dict[str, Any]:
    """The processor of a `/proc/cpuinfo`: its name, its architecture, and the instruction sets that change sums.

    A virtual machine often hides the name, so that the numbers of family and model say which processor it is.
    """
    values: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())  # the first core's
    model = values.get("model name") or values.get("Model") or platform.processor()
    if "vendor_id" in values:
        kind = f"{values['vendor_id']} family {values.get('cpu family')} model {values.get('model')}"
    elif "CPU implementer" in values:
        kind = f"ARM implementer {values['CPU implementer']} part {values.get('CPU part')}"
    else:
        return {"model": model}
    features = (values.get("flags") or values.get("Features", "")).split()
    return {
        "model": model,
        "architecture": kind,
        "instructions": sorted({f for f in features if _VECTORS.fullmatch(f)}),
    }


def read_packages() -> dict[str, str]:
    """Versions of the installed packages that affect results or speed, by name."""
    names = {
        (package.metadata["Name"] or "").lower().replace("_", "-") for package in importlib.metadata.distributions()
    }
    return {name: importlib.metadata.version(name) for name in sorted(names) if _PACKAGES.fullmatch(name)}


def select_flags(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change numerics or speed.

    >>> select_flags({"JAX_PLATFORMS": "cpu", "HOME": "/root"})
    {'JAX_PLATFORMS': 'cpu'}
    """
    return {name: value for name, value in sorted(environ.items()) if _FLAGS.fullmatch(name)}


def read_git(folder: Path) -> dict[str, Any] | None:
    """The commit checked out in a folder's repository, and whether files differ from it; None outside of one."""
    git = shutil.which("git")
    if git is None:
        return None

    def run_git(*words: str) -> str | None:
        command = [git, "-c", "core.fsmonitor=false", "-C", str(folder), *words]  # no program of the repository
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        return process.stdout.strip() if process.returncode == 0 else None

    sha = run_git("rev-parse", "HEAD")
    if sha is None:
        return None
    return {"sha": sha, "dirty": bool(run_git("status", "--porcelain"))}
