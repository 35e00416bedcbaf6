"""Collection of facts about a node of a cluster: fabric, limits, folders, names, the scheduler's variables.

In: this machine, or a folder in place of its root. Out: `Cluster`. It reads files, limits and libraries, and sends
nothing.

Source: docs.kernel.org (ABI of /sys/class/infiniband); docs.nvidia.com/deeplearning/nccl (environment variables,
troubleshooting).
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Those that the checks read, and no others: a scheduler's may be secrets, such as SLURM_JWT.
_VARIABLES = re.compile(
    r"NCCL_\w+|NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES)|SLURM_(GPUS_ON_NODE|(NTASKS|STEP_TASKS)_PER_NODE)"
)
_LIBRARIES = ("libibverbs.so.1", "libfabric.so.1", "libnccl-net.so", "libnccl-net-ofi.so")
_LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of a network device for RDMA.

    Attributes:
        name: such as `mlx5_0/1`.
        link: `InfiniBand`, `Ethernet` (RoCE) or `EFA`.
        active: whether the port is up.
        rate: as the kernel spells it, such as `400 Gb/sec (4X NDR)`.
    """

    name: str
    link: str
    active: bool
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that programs write to.

    Attributes:
        used_as: `HOME`, `TMPDIR` or `JAX_COMPILATION_CACHE_DIR`.
        free_bytes: None if it does not exist.
        writable: whether this user may write there.
    """

    path: str
    used_as: str
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Facts about a node.

    Attributes:
        ports: of its RDMA devices.
        verbs: whether this user may open the devices' files; None if there are none.
        libraries: file name of each library for fabrics that a program can load.
        limits: soft limits of this process; -1 for unlimited.
        addresses: of this machine's own name.
        interfaces: names of its network interfaces.
        folders: that programs write to.
        cpus: that this process may run on.
        environ: variables of schedulers, fabrics and containers.
    """

    ports: tuple[Port, ...] = ()
    verbs: bool | None = None
    libraries: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    cpus: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)


def gather_cluster(root: Path = Path("/")) -> Cluster:
    """The facts about this node.

    Args:
        root: the folder in which `sys` and `dev` are.
    """
    return Cluster(
        ports=tuple(_find_ports(root)),
        verbs=_may_open_verbs(root),
        libraries=tuple(name for name in _LIBRARIES if _can_load(name)),
        limits={name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()},
        addresses=_find_addresses(),
        interfaces=tuple(_names(root / "sys/class/net")),
        folders=tuple(_find_folders()),
        cpus=len(os.sched_getaffinity(0)),
        environ={name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)},
    )


def _find_ports(root: Path) -> Iterator[Port]:
    devices = root / "sys/class/infiniband"
    for device in _names(devices):
        driver = (devices / device / "device/driver").resolve().name
        for number in _names(devices / device / "ports"):
            port = devices / device / "ports" / number
            link = "EFA" if driver == "efa" else _read(port / "link_layer")
            yield Port(
                name=f"{device}/{number}",
                link=link,
                active=_read(port / "state").endswith("ACTIVE"),
                rate=_read(port / "rate"),
            )


def _may_open_verbs(root: Path) -> bool | None:
    files = sorted((root / "dev/infiniband").glob("uverbs*"))
    if files:
        return all(os.access(path, os.R_OK | os.W_OK) for path in files)
    return None


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _find_addresses() -> tuple[str, ...]:
    try:
        answers = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in answers))


def _find_folders() -> Iterator[Folder]:
    chosen = {"HOME": os.environ.get("HOME", ""), "TMPDIR": os.environ.get("TMPDIR") or "/tmp"}
    chosen["JAX_COMPILATION_CACHE_DIR"] = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    for used_as, name in chosen.items():
        path = Path(name)
        if not path.is_absolute():
            continue
        try:
            status = os.statvfs(path)
            free = status.f_frsize * status.f_bavail
        except OSError:
            free = None
        yield Folder(path=name, used_as=used_as, free_bytes=free, writable=os.access(path, os.W_OK | os.X_OK))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
