"""Processor, devices and driver of this machine, for programs that do not record them.

In: this machine, the job's environment. Out: the `environment` of a `nightjar.run/1`.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from nightjar_ci.environments.current import Interpreter
from nightjar_ci.formats.run_record import Cpu, Environment, Git

# XLA, Eigen and oneDNN choose kernels by these, and with the width of a vector the order of a sum changes.
VECTORS = re.compile(r"sse4_2|avx\w*|amx_\w+|fma|f16c|asimd\w*|sve\w*|sme\d?|bf16|i8mm")
OF_JAX = ("jax", "jaxlib", "flax", "optax", "numpy", "torch")


def read_machine(
    environment: str, git: Git | None, interpreter: Interpreter | None = None, *, all_packages: bool = False
) -> Environment:
    """The environment of a job that ran here.

    Args:
        interpreter: the Python that it ran in; if None, package versions are unknown.
        all_packages: record every installed package, not only the ones that affect JAX's speed.
    """
    devices, driver = find_gpus()
    python, packages = platform.python_version(), dict[str, str]()
    if interpreter is not None:
        python, packages = interpreter.version, _read_versions(interpreter, None if all_packages else OF_JAX)
    return Environment(
        python=python,
        platform=f"{platform.system().lower()}-{platform.machine()}",
        cpu=_read_cpu(),
        backend="gpu" if devices else "cpu",
        devices=devices or ("cpu",),
        packages=packages,
        flags={},
        git=git,
        image=environment.partition(":")[2] if environment.startswith("image:") else None,
        driver=driver,
    )


def find_gpus() -> tuple[tuple[str, ...], str | None]:
    """The names of the NVIDIA GPUs and their driver version; none without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return (), None
    rows = [line.rpartition(",") for line in output.splitlines() if "," in line]
    return tuple(name.strip() for name, _, _ in rows), next((driver.strip() for _, _, driver in rows), None)


def _read_cpu() -> Cpu:
    info, values = Path("/proc/cpuinfo"), dict[str, str]()
    for line in info.read_text().splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())  # the first core's
    architecture = instructions = None
    if "vendor_id" in values:
        architecture = f"{values['vendor_id']} family {values.get('cpu family')} model {values.get('model')}"
    elif "CPU implementer" in values:
        architecture = f"ARM implementer {values['CPU implementer']} part {values.get('CPU part')}"
    if architecture is not None:
        features = (values.get("flags") or values.get("Features", "")).split()
        instructions = tuple(sorted({feature for feature in features if VECTORS.fullmatch(feature)}))
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Cpu(
        model=values.get("model name") or values.get("Model") or platform.processor(),
        cores=cores,
        memory_bytes=memory,
        architecture=architecture,
        instructions=instructions,
    )


def _read_versions(interpreter: Interpreter, names: Sequence[str] | None) -> dict[str, str]:
    """The versions of packages by canonical name; of all installed ones if no names are given."""
    versions: dict[str, str] = {}
    for installed in distributions(path=list(interpreter.path)):
        if name := installed.metadata["Name"]:
            versions.setdefault(canonicalize_name(name), installed.version)
    if names is None:
        return dict(sorted(versions.items()))
    return {name: versions[name] for name in names if name in versions}
