"""Collection of facts from the driver, nvidia-smi, the installed packages, and JAX in another process.

In: this machine. Out: facts. Works without a GPU, without an NVIDIA driver and with a JAX that does not start.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightjar_models.doctor.facts import Facts, Gpu, Library, Version, parse_version

PROBE = Path(__file__).with_name("probe.py")
SHARED_MEMORY = Path("/dev/shm")
OPTIONAL = {"transformer-engine": "transformer_engine.jax", "nvidia-dali": "nvidia.dali"}
_PACKAGES = re.compile(
    r"jax|jaxlib|jax-cuda\d+-\w+|nvidia-[\w-]+|transformer-engine[\w-]*|flax|optax|orbax-checkpoint|grain|numpy|nightjar-\w+"
)
_VARIABLES = re.compile(
    r"PYTHONPATH|LD_LIBRARY_PATH|LD_PRELOAD|CUDA_VISIBLE_DEVICES|CUDA_HOME|NVIDIA_VISIBLE_DEVICES|XLA_\w+|JAX_\w+|NCCL_\w+|TF_GPU_ALLOCATOR"
)
_CUDA_FILES = re.compile(r"lib(cudart|cublas|cublasLt|cudnn\w*|cufft|cusparse|cusolver|nccl|nvrtc|nvJitLink)\.so")
_WHEELS = {
    "CUDA runtime": "cuda-runtime",
    "cuDNN": "cudnn",
    "cuBLAS": "cublas",
    "cuFFT": "cufft",
    "cuSPARSE": "cusparse",
    "NCCL": "nccl",
}
_IN_WHEEL = re.compile(r"/(?:site|dist)-packages/nvidia/")
_SMI = [
    "--query-gpu=name,compute_cap,memory.total,memory.used,mig.mode.current,driver_version",
    "--format=csv,noheader,nounits",
]
_SMI_TIMEOUT_S = 30


def gather_facts(timeout_s: float) -> Facts:
    """All facts that the checks need.

    Args:
        timeout_s: how long JAX may take to start, seconds.
    """
    packages, hidden = read_packages()
    modules = [module for name, module in OPTIONAL.items() if any(package.startswith(name) for package in packages)]
    probed = run_probe(modules, timeout_s)
    gpus, complaint = ask_nvidia_smi()
    driver = read_driver() or next((gpu.driver for gpu in gpus), "")  # WSL2 has no driver of its own
    libraries = tuple(make_library(entry, packages) for entry in probed["libraries"])
    return Facts(
        python=platform.python_version(),
        platform=f"{platform.system().lower()}-{platform.machine()}",
        driver=parse_version(driver) or None,
        gpus=gpus,
        packages=packages,
        hidden=hidden,
        backend=probed["backend"],
        devices=tuple(probed["devices"]),
        libraries=libraries,
        failures=probed["failures"] | complaint,
        complaint=probed["complaint"],
        environ={name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)},
        shadowing=find_shadowing(os.environ.get("LD_LIBRARY_PATH", "")),
        shm_bytes=read_shm_bytes(SHARED_MEMORY),
        container=is_container(),
    )


def is_container() -> bool:
    """Whether this process runs in a container of Docker, Podman or Apptainer."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or "APPTAINER_CONTAINER" in os.environ


def read_packages() -> tuple[dict[str, str], tuple[str, ...]]:
    """The distributions that matter to JAX, and the ones that hide another version.

    Returns:
        Name to version, of the first on `sys.path`, which is imported; and a line for each different version behind it.
    """
    first: dict[str, tuple[str, str]] = {}
    hidden = []
    for package in importlib.metadata.distributions():
        name, folder = (package.metadata["Name"] or "").lower().replace("_", "-"), str(package.locate_file(""))
        version, before = first.setdefault(name, (package.version, folder))
        if version != package.version and _PACKAGES.fullmatch(name):
            hidden.append(f"{name} {version} ({before}) hides {package.version} ({folder})")
    packages = {name: version for name, (version, _) in sorted(first.items()) if _PACKAGES.fullmatch(name)}
    return packages, tuple(sorted(hidden))


def ask_nvidia_smi() -> tuple[tuple[Gpu, ...], dict[str, str]]:
    """The GPUs that nvidia-smi lists, none if it is missing; and its first line if it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), {}
    try:
        done = subprocess.run([program, *_SMI], capture_output=True, text=True, check=False, timeout=_SMI_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), {"nvidia-smi": str(error)}
    if done.returncode == 0:
        return parse_nvidia_smi(done.stdout), {}
    return (), {"nvidia-smi": (done.stdout + done.stderr).strip().partition("\n")[0]}


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's answer: name, compute capability, memory, memory in use (MiB), MIG, driver.

    >>> parse_nvidia_smi("NVIDIA H100, 9.0, 81559, [N/A], Disabled, 580.65.06")[0].memory_mib
    81559
    """
    gpus = []
    for line in text.splitlines():
        name, *rest = (part.strip() for part in line.rsplit(",", 5))
        if len(rest) == 5:
            total, used = (int(number) if number.isdigit() else None for number in rest[1:3])
            capability = parse_version(rest[0]) or None
            gpus.append(
                Gpu(
                    name=name,
                    capability=capability,
                    memory_mib=total,
                    used_mib=used,
                    mig=rest[3] == "Enabled",
                    driver=rest[4],
                )
            )
    return tuple(gpus)


def run_probe(modules: list[str], timeout_s: float) -> dict[str, Any]:
    """JAX's backend, devices and libraries, from another process."""
    silent: dict[str, Any] = {"backend": None, "devices": [], "failures": {}, "libraries": [], "complaint": ""}
    try:
        done = subprocess.run(
            [sys.executable, str(PROBE), *modules], capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return {**silent, "failures": {"probe": f"JAX did not start within {timeout_s:g} s"}}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {**silent, "failures": {"probe": f"JAX's process exited with status {done.returncode}: {last}"}}
    errors = re.findall(r"^\w+Error: (.*)$", done.stderr, re.MULTILINE)
    return {**answer, "complaint": "".join(errors[-1:])}


def make_library(entry: Mapping[str, Any], packages: Mapping[str, str]) -> Library:
    """A library, from the probe's entry and the packages.

    A library loaded from a wheel gets the wheel's version, which has more numbers than the library's own.
    """
    stem = f"nvidia-{_WHEELS[entry['name']]}"
    package = next((name for name in packages if re.fullmatch(rf"{stem}(-cu\d+)?", name)), None)

    def version(key: str) -> Version | None:
        if entry.get(key):
            return tuple(entry[key])
        return None

    loaded = version("loaded")
    if loaded and package and _IN_WHEEL.search(entry.get("path") or ""):
        wheel = parse_version(packages[package])
        if wheel[: len(loaded)] == loaded:
            loaded = wheel
    return Library(
        name=entry["name"],
        compiled=version("compiled"),
        required=version("required") or (read_required(package, packages) if package else None),
        loaded=loaded,
        path=entry.get("path"),
        package=package,
        error=entry.get("error"),
    )


def read_required(package: str, packages: Mapping[str, str]) -> Version | None:
    """The minimum version of a package in the metadata of JAX's CUDA plugin."""
    for plugin in packages:
        if re.fullmatch(r"jax-cuda\d+-plugin", plugin):
            for line in importlib.metadata.requires(plugin) or ():
                if least := re.match(rf"{re.escape(package)}\b[^;]*>=\s*([\d.]+)", line):
                    return parse_version(least[1])
    return None


def find_shadowing(path: str) -> tuple[str, ...]:
    """The CUDA libraries in the folders of an LD_LIBRARY_PATH."""
    libraries = []
    for folder in filter(None, path.split(":")):
        try:
            libraries += [str(file) for file in sorted(Path(folder).iterdir()) if _CUDA_FILES.match(file.name)]
        except OSError:
            continue
    return tuple(libraries)


def read_shm_bytes(folder: Path) -> int | None:
    """The size of the shared memory file system; None if there is none."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def read_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the loaded NVIDIA driver, by the kernel's word; None if none is loaded."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module\b.*?\s(\d+\.\d[\d.]*)\s", text)
    return match[1] if match else None
