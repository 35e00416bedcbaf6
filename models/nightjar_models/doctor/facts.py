"""Facts about a machine that decide whether JAX can use its GPUs: plain data, gathered once, then checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, as nvidia-smi describes it.

    Attributes:
        name: such as `NVIDIA H100 80GB HBM3`.
        capability: compute capability, such as (9, 0); None if unknown.
        memory_mib, used_mib: None if unknown.
        mig: whether it is divided into instances.
    """

    name: str
    capability: Version | None = None
    memory_mib: int | None = None
    used_mib: int | None = None
    mig: bool = False
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A CUDA library.

    Attributes:
        name: such as `cuDNN`.
        compiled: the version that JAX was compiled against; None if it does not say.
        required: the oldest that JAX runs with.
        loaded: the version that a program of this environment loads, as many numbers as are known; None if it cannot be
            loaded.
        path: the file that was loaded; None if unknown.
        package: the wheel that brings it; None if none is installed.
        error: why it could not be loaded.
    """

    name: str
    compiled: Version | None = None
    required: Version | None = None
    loaded: Version | None = None
    path: str | None = None
    package: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a machine.

    Attributes:
        python, platform: of this machine.
        driver: version of the NVIDIA kernel driver; None if none is loaded.
        gpus: as nvidia-smi lists them.
        packages: versions of the relevant packages that are imported, by name.
        hidden: other installed versions, later on `sys.path`, one line each.
        backend, devices: JAX's backend and devices; None and empty if it did not start.
        libraries: CUDA libraries of JAX's CUDA plugin.
        failures: `jax`, `transformer_engine`, `nvidia.dali`, `nvidia-smi` or `probe` to the reason why it failed.
        complaint: the last error that JAX printed though it started.
        environ: relevant variables.
        shadowing: CUDA libraries in folders of LD_LIBRARY_PATH, which come before the wheels' libraries.
        shm_bytes: size of /dev/shm; None if there is none.
        container: whether the machine is a container.
    """

    python: str
    platform: str
    driver: Version | None = None
    gpus: tuple[Gpu, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    backend: str | None = None
    devices: tuple[str, ...] = ()
    libraries: tuple[Library, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    complaint: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    shadowing: tuple[str, ...] = ()
    shm_bytes: int | None = None
    container: bool = False


def parse_version(text: str) -> Version:
    """The numbers at the start of a version.

    >>> parse_version("580.65.06"), parse_version("12.9.1rc1")
    ((580, 65, 6), (12, 9, 1))
    """
    numbers = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def format_version(version: Version | None) -> str:
    """A version as people write it; `unknown` for None."""
    if version is None:
        return "unknown"
    return ".".join(map(str, version))
