"""Checks of a machine for JAX: faults and their fixes, as pure functions over gathered facts.

In: facts. Out: findings, the most serious first. An error is a mismatch that breaks programs or makes them wrong; a
warning is one that breaks some, or makes them slow; a note explains a missing part.

Source: docs.jax.dev/en/latest/installation.html (driver floors, compute capabilities); the checks of JAX's own CUDA
plugin (jax_plugins/xla_cuda12/__init__.py); docs.nvidia.com/deeplearning/nccl (troubleshooting, shared memory).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from nightjar_models.doctor import gather
from nightjar_models.doctor.facts import Facts, Version, format_version, parse_version

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")

# CUDA's major version to the oldest driver (Linux) and the oldest GPU that JAX's wheels for it run on
DRIVER_FLOORS = {12: (525,), 13: (580,)}
OLDEST_CAPABILITIES = {12: (5, 2), 13: (7, 5)}
LEAST_SHM_BYTES = 2**30  # NCCL's buffers and a data loader's workers; Docker gives 64 MB
CRASHING_JAXLIBS = ("0.10.2",)  # not 0.6.0 to 0.10.1, nor 0.12.0.1
CRASH_REPORTS = "jax-ml/jax#39257, #40412"
MEM_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # the second is the older name
TAKEN_FRACTION = 0.75  # of a GPU's memory, by JAX at its start
NO_PREALLOCATION = ("false", "False", "0")  # of XLA_PYTHON_CLIENT_PREALLOCATE; others are true
LAST_CUDNN = ((9, 11), (7, 5))  # from the first on, the wheels have no code for GPUs below the second
# Words of CUDA or its tools, and the end of the threads that ask about them
CURES = {
    "SYSTEM_NOT_READY": "start nvidia-fabricmanager on the host: GPUs on NVSwitch need it",
    "CUDA_ERROR_UNKNOWN": "reload the module, as after a suspend: modprobe -r nvidia_uvm; modprobe nvidia_uvm",
    "MISMATCH": "reboot: the driver was upgraded, and the kernel still has the one before",
}

_FLAVORS = (
    re.compile(r"jax-cuda(\d+)-(?:plugin|pjrt)"),
    re.compile(r"(?:nvidia-[a-z0-9-]+|transformer-engine)-cu(\d+)"),
    re.compile(r"nvidia-dali-cuda(\d+)0"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or a note, its fix, and whose job that is if a cluster has several people."""

    level: Level
    check: str
    found: str
    fix: str
    whose: str = ""


def judge_facts(facts: Facts, *, expect_gpu: bool = False, more: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Every finding, the most serious first.

    Args:
        expect_gpu: report a missing GPU as an error.
        more: findings of other checks.
    """
    findings = [*(finding for check in CHECKS for finding in check(facts)), *more]
    if expect_gpu and not facts.gpus:
        findings = [finding for finding in findings if finding.check != "devices"]
        findings.append(Finding("error", "devices", "no GPU is seen here", _fix_no_gpu(facts)))
    return tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))


def cuda_flavors(facts: Facts) -> dict[int, list[str]]:
    """Installed packages by the major version of CUDA that they are built for."""
    flavors: dict[int, list[str]] = {}
    for name in sorted(facts.packages):
        matched = next((match for pattern in _FLAVORS if (match := pattern.fullmatch(name))), None)
        if matched:
            flavors.setdefault(int(matched[1]), []).append(name)
    return flavors


def plugin_flavors(facts: Facts) -> list[int]:
    """Major versions of CUDA with an installed JAX plugin."""
    return [number for number, names in sorted(cuda_flavors(facts).items()) if f"jax-cuda{number}-plugin" in names]


def check_probe(facts: Facts) -> Iterator[Finding]:
    """JAX and the optional libraries can be imported and start."""
    upgrade = f"pip install --upgrade {name_extra(facts)}"
    if "JAX_PLATFORMS" in facts.environ:
        upgrade = f"unset JAX_PLATFORMS (the name for NVIDIA is cuda, not gpu); else {upgrade}"
    fixes = {
        "jax": upgrade,
        "nvidia-smi": "load or reinstall the driver of the host, if this machine has a GPU",
        "transformer_engine": "pip install --force-reinstall transformer-engine[jax] with the JAX that is installed",
        "nvidia.dali": "pip install the nvidia-dali-cuda package of the CUDA that JAX uses",
        "probe": "run `python -c 'import jax; print(jax.devices())'` by hand to see where it hangs",
    }
    for name, reason in facts.failures.items():
        if name == "jax" and name not in facts.packages:
            fix = "pip install jax, jax[cuda12] or jax[cuda13]"
            if facts.container:
                fix = "use the image jax, or one built on it"
            yield Finding("error", "imports", "JAX is not installed", fix)
            continue
        cure = find_cure(reason)
        level: Level = "note" if name == "nvidia-smi" and cure is None else "error"
        fix = cure or fixes.get(name, "read its message")
        yield Finding(level, "imports", f"{name}: {reason}", fix)


def find_cure(words: str) -> str | None:
    return next((cure for sign, cure in CURES.items() if sign in words.upper()), None)


def name_extra(facts: Facts) -> str:
    """JAX with the extra of its plugin; without one, of the newest CUDA that driver and GPUs take."""
    major = max(plugin_flavors(facts), default=12)
    is_new = all(gpu.capability is None or gpu.capability >= OLDEST_CAPABILITIES[13] for gpu in facts.gpus)
    if not plugin_flavors(facts) and facts.driver and facts.driver >= DRIVER_FLOORS[13] and is_new:
        major = 13
    return f"jax[cuda{major}]"


def check_versions(facts: Facts) -> Iterator[Finding]:
    """The versions of jax, jaxlib and the CUDA plugin match."""
    jaxlib = facts.packages.get("jaxlib")
    if jaxlib is None:
        return
    for name, version in facts.packages.items():
        if re.fullmatch(r"jax-cuda\d+-(plugin|pjrt)", name) and version != jaxlib:
            fix = f"pip install {name}=={jaxlib}"
            yield Finding("error", "versions", f"{name} {version} beside jaxlib {jaxlib}", fix)
    jax = facts.packages.get("jax")
    if jax is not None and parse_version(jax) < parse_version(jaxlib):
        problem = f"jax {jax} beside the newer jaxlib {jaxlib}"
        yield Finding("error", "versions", problem, f"pip install jax=={jaxlib}")


def check_flavors(facts: Facts) -> Iterator[Finding]:
    """All wheels are for one version of CUDA."""
    flavors = cuda_flavors(facts)
    if len(flavors) < 2:
        return
    plugins = plugin_flavors(facts)
    kept = plugins[-1] if plugins else max(flavors)
    surplus = " ".join(name for number, names in flavors.items() if number != kept for name in names)
    problem = "; ".join(f"CUDA {number}: {', '.join(names)}" for number, names in sorted(flavors.items()))
    yield Finding("error", "flavors", f"wheels of two CUDA versions: {problem}", f"pip uninstall {surplus}")


def check_libraries(facts: Facts) -> Iterator[Finding]:
    """Each CUDA library that reports its version is at least as new as the one that JAX was compiled against."""
    for library in facts.libraries:
        upgrade = "upgrade it where it is installed"
        if library.error is not None and not library.package:
            upgrade = f"pip install {name_extra(facts)}"
        if facts.shadowing and library.path in (None, *facts.shadowing):
            upgrade = "unset LD_LIBRARY_PATH"
        elif library.package:
            upgrade = f"pip install --upgrade {library.package}"
        if library.error is not None:
            problem = f"{library.name} cannot be loaded: {library.error}"
            yield Finding("error", "libraries", problem, upgrade)
            continue
        minimums: tuple[tuple[Version | None, Level, str], ...] = (
            (library.required, "error", "that this JAX needs"),
            (library.compiled, "warning", "that JAX was compiled against"),
        )
        older = [
            (minimum, level, why)
            for minimum, level, why in minimums
            if minimum and library.loaded and library.loaded < minimum[: len(library.loaded)]
        ]
        for minimum, level, why in older[:1]:
            where = ""
            if library.path:
                where = f" ({library.path})"
            loaded, least = format_version(library.loaded), format_version(minimum)
            problem = f"{library.name} {loaded} is loaded{where}, older than {least} {why}"
            yield Finding(level, "libraries", problem, upgrade)


def check_shadowing(facts: Facts) -> Iterator[Finding]:
    """LD_LIBRARY_PATH does not hide the CUDA libraries of the wheels."""
    wheels = any(name.startswith("nvidia-c") for name in facts.packages)
    if facts.shadowing and wheels:
        shown = ", ".join(facts.shadowing[:4])
        if len(facts.shadowing) > 4:
            shown += f" and {len(facts.shadowing) - 4} more"
        problem = f"LD_LIBRARY_PATH puts {shown} before the libraries of the wheels"
        yield Finding("warning", "shadowing", problem, "unset LD_LIBRARY_PATH")


def check_crashes(facts: Facts) -> Iterator[Finding]:
    """Programs of the installed jaxlib do not die of arrays with many dimensions (`canaries.many_dimensions`)."""
    jaxlib = facts.packages.get("jaxlib")
    if jaxlib in CRASHING_JAXLIBS and facts.platform.endswith("x86_64"):
        fix = "use Python 3.12 or newer, and the newest JAX"
        if parse_version(facts.python) >= (3, 12):
            fix = "pip install --upgrade jax"
        problem = f"jaxlib {jaxlib} on x86: programs with arrays of seven or more dimensions can end with SIGSEGV"
        yield Finding("warning", "crashes", f"{problem} ({CRASH_REPORTS})", fix)


def check_hidden(facts: Facts) -> Iterator[Finding]:
    """Each package is installed in one version."""
    if facts.hidden:
        problem = f"two versions of a package are installed, and the first is imported: {'; '.join(facts.hidden)}"
        fix = "unset PYTHONPATH, or uninstall one of the two"
        yield Finding("warning", "hidden", problem, fix)


def check_driver(facts: Facts) -> Iterator[Finding]:
    """The driver is new enough for the CUDA version of the wheels."""
    for number in plugin_flavors(facts):
        floor = DRIVER_FLOORS.get(number)
        if facts.driver and floor and facts.driver < floor:
            older = [major for major, least in sorted(DRIVER_FLOORS.items()) if least <= facts.driver]
            other = ""
            if older:
                other = f", or pip install jax[cuda{older[-1]}]"
            problem = f"driver {format_version(facts.driver)} is older than {floor[0]}, which CUDA {number} needs"
            yield Finding("error", "driver", problem, f"upgrade the driver of the host to {floor[0]}{other}")


def check_capability(facts: Facts) -> Iterator[Finding]:
    """The GPUs are new enough for the wheels."""
    cudnn = next((library.loaded for library in facts.libraries if library.name == "cuDNN"), None)
    for number in plugin_flavors(facts):
        oldest = OLDEST_CAPABILITIES.get(number)
        for gpu in facts.gpus:
            if gpu.capability and oldest and gpu.capability < oldest:
                shown = f"{gpu.name} has compute capability {format_version(gpu.capability)}"
                problem = f"{shown}, the wheels of CUDA {number} start at {format_version(oldest)}"
                yield Finding("error", "capability", problem, "pip install jax[cuda12], or use a newer GPU")
            elif gpu.capability and gpu.capability < LAST_CUDNN[1] and cudnn and cudnn >= LAST_CUDNN[0]:
                problem = f"{gpu.name} is older than all that cuDNN {format_version(cudnn)} has code for"
                fix = f"pip install 'nvidia-cudnn-cu{number}<{format_version(LAST_CUDNN[0])}'"
                yield Finding("error", "capability", problem, fix)


def check_devices(facts: Facts) -> Iterator[Finding]:
    """JAX uses all GPUs of the machine."""
    plugins = plugin_flavors(facts)
    if not facts.gpus:
        if plugins:
            yield Finding("note", "devices", "no GPU is seen here", _fix_no_gpu(facts))
        return
    if facts.backend in ("gpu", "cuda"):
        if any(gpu.mig for gpu in facts.gpus):
            fix = "start a process for each, with its own CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L)"
            yield Finding("note", "devices", "MIG: CUDA shows a process one instance", fix)
        elif len(facts.devices) < len(facts.gpus) and "CUDA_VISIBLE_DEVICES" not in facts.environ:
            problem = f"JAX sees {len(facts.devices)} of {len(facts.gpus)} GPUs"
            yield Finding(
                "warning", "devices", problem, "CUDA_VISIBLE_DEVICES chooses GPUs; check nvidia-smi for a broken one"
            )
        return
    if facts.backend is None:
        return  # it did not start: check_probe says why
    problem = f"JAX computes on {facts.backend} though there are {len(facts.gpus)} GPUs"
    variable = next((name for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES") if name in facts.environ), None)
    if variable is not None:
        yield Finding("warning", "devices", f"{problem}: {variable}={facts.environ[variable]!r}", f"unset {variable}")
    else:
        fix = f"pip install {name_extra(facts)}"
        if plugins:
            fix = find_cure(facts.complaint) or "read JAX's own warning: python -c 'import jax; jax.devices()'"
        if facts.complaint:
            problem += f": {facts.complaint}"
        yield Finding("error", "devices", problem, fix)


def check_shared_memory(facts: Facts) -> Iterator[Finding]:
    """/dev/shm is large enough for NCCL and data loaders."""
    finding = find_small_shm(facts.shm_bytes, container=facts.container)
    if finding is not None:
        yield replace(finding, level="note") if len(facts.gpus) == 1 else finding


def find_small_shm(shm_bytes: int | None, *, container: bool) -> Finding | None:
    """A warning if /dev/shm is too small for NCCL, else None.

    Args:
        shm_bytes: its size; None if it does not exist.
        container: whether this machine is a container.
    """
    if shm_bytes is None or shm_bytes >= LEAST_SHM_BYTES:
        return None
    problem = f"/dev/shm has {shm_bytes / 2**20:.0f} MiB: NCCL and data loaders may end with a bus error"
    fix = "mount -o remount,size=1g /dev/shm"
    if container:
        fix = "docker run --shm-size=1g, or --ipc=host"
    return Finding("warning", "shared memory", problem, fix)


def check_preallocation(facts: Facts) -> Iterator[Finding]:
    """JAX can allocate its share of GPU memory at start."""
    fractions = {name: facts.environ[name] for name in MEM_FRACTIONS if facts.environ.get(name)}
    taken = TAKEN_FRACTION
    for name, fraction in fractions.items():
        is_valid = False
        with suppress(ValueError):
            is_valid = 0 < float(fraction) <= 1
        if is_valid:
            taken = float(fraction)
        else:
            problem = f"{name} is {fraction!r}, expected a number above 0 and up to 1"
            yield Finding("error", "preallocation", problem, f"unset {name}")
    if len(fractions) > 1:
        problem = f"{' and '.join(fractions)} are both set: JAX does not start on a GPU"
        yield Finding("error", "preallocation", problem, f"unset {MEM_FRACTIONS[1]}, the older name")
    if facts.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE") in NO_PREALLOCATION:
        return
    if facts.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "platform":
        return
    for number, gpu in enumerate(facts.gpus):
        if gpu.memory_mib and gpu.used_mib and gpu.used_mib > (1 - taken) * gpu.memory_mib:
            used = f"{gpu.used_mib} of {gpu.memory_mib} MiB in use"
            problem = f"GPU {number} has {used}: JAX takes {taken:.0%} at its start and may fail"
            fix = "stop the process that uses it (nvidia-smi), or set XLA_PYTHON_CLIENT_PREALLOCATE=false"
            yield Finding("warning", "preallocation", problem, fix)


def _fix_no_gpu(facts: Facts) -> str:
    if facts.container:
        return "start the container with --gpus all (Docker: nvidia-container-toolkit on the host) or --nv (Apptainer)"
    return "run nvidia-smi to check that there is a GPU and that its driver is loaded"


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_versions,
    check_crashes,
    check_hidden,
    check_flavors,
    check_libraries,
    check_shadowing,
    check_driver,
    check_capability,
    check_probe,
    check_devices,
    check_shared_memory,
    check_preallocation,
)


def warn_before_nccl(devices: int, backend: str) -> None:
    """Prints a warning to stderr if several GPUs will use NCCL and /dev/shm is too small.

    NCCL ends a process with a bus error if it is full and gives no reason, so the warning must come first.

    Args:
        devices: of the mesh, on all machines.
        backend: JAX's backend, such as `gpu`.
    """
    if devices < 2 or backend not in ("gpu", "cuda"):
        return
    finding = find_small_shm(gather.read_shm_bytes(gather.SHARED_MEMORY), container=gather.is_container())
    if finding is not None:
        print(f"warning: {finding.found}.\nHint: {finding.fix}", file=sys.stderr, flush=True)
