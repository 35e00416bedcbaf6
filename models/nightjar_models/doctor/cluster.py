"""Collection of facts about a node of a cluster: fabric, limits, clock, file systems, names, the scheduler's variables.

In: this machine, or a folder in place of its root. Out: `Cluster`. It reads files, limits and libraries, and sends
nothing.

Source: docs.kernel.org (ABI of /sys/class/infiniband; adjtimex), man 5 proc; docs.nvidia.com/deeplearning/nccl
(environment variables, troubleshooting).
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
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_UNSYNCHRONISED = 0x40  # STA_UNSYNC of timex.h
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
        kind: type of its file system, such as `nfs4`; empty if unknown.
        free_bytes: None if it does not exist.
        writable: whether this user may write there.
    """

    path: str
    used_as: str
    kind: str
    free_bytes: int | None
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Facts about a node.

    Attributes:
        ports: of its RDMA devices.
        verbs: whether this user may open the devices' files; None if there are none.
        libraries: file name of each library for fabrics that a program can load.
        peer_memory: whether a kernel module lets network devices reach the memory of GPUs.
        limits: soft limits of this process; -1 for unlimited.
        clock_synchronised: None if the kernel does not say.
        addresses: of this machine's own name.
        interfaces: names of its network interfaces.
        folders: that programs write to.
        governor: frequency governor of the processors; empty if unknown.
        numa_balancing: whether the kernel moves memory between sockets.
        cpus: that this process may run on.
        memory_limit_bytes: of the control group; None for no limit.
        environ: variables of schedulers, fabrics and containers.
    """

    ports: tuple[Port, ...] = ()
    verbs: bool | None = None
    libraries: tuple[str, ...] = ()
    peer_memory: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    clock_synchronised: bool | None = None
    addresses: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    governor: str = ""
    numa_balancing: bool = False
    cpus: int = 1
    memory_limit_bytes: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


def gather_cluster(root: Path = Path("/")) -> Cluster:
    """The facts about this node.

    Args:
        root: the folder in which `sys`, `proc` and `dev` are.
    """
    modules = _read(root / "proc/modules")
    return Cluster(
        ports=tuple(_find_ports(root)),
        verbs=_may_open_verbs(root),
        libraries=tuple(name for name in _LIBRARIES if _can_load(name)),
        peer_memory=any(re.search(rf"^{module} ", modules, re.MULTILINE) for module in _PEER_MODULES),
        limits={name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()},
        clock_synchronised=is_clock_synchronised(),
        addresses=_find_addresses(),
        interfaces=tuple(_names(root / "sys/class/net")),
        folders=tuple(_find_folders(_read(root / "proc/self/mountinfo"))),
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        numa_balancing=_read(root / "proc/sys/kernel/numa_balancing") not in ("", "0"),
        cpus=len(os.sched_getaffinity(0)),
        memory_limit_bytes=_read_limit(_read(root / "sys/fs/cgroup/memory.max")),
        environ={name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)},
    )


def find_file_system(mountinfo: str, path: Path) -> str:
    """The type of the file system that holds a path, from the text of `/proc/self/mountinfo`.

    >>> find_file_system("1 0 0:1 / / rw - ext4 sda rw\\n2 1 0:2 / /home rw - nfs4 server:/a rw", Path("/home/a"))
    'nfs4'
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = Path(fields[4].encode().decode("unicode_escape"))
        if path.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), after.split()[0]
    return kind


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


def is_clock_synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised; reading it needs no rights."""
    buffer = ctypes.create_string_buffer(512)  # struct timex, larger than on any architecture; modes = 0 reads
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    longs = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long))
    status = ctypes.cast(ctypes.byref(longs.contents, 5 * ctypes.sizeof(ctypes.c_long)), ctypes.POINTER(ctypes.c_int))
    return not status.contents.value & _UNSYNCHRONISED


def _find_addresses() -> tuple[str, ...]:
    try:
        answers = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in answers))


def _find_folders(mountinfo: str) -> Iterator[Folder]:
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
        yield Folder(
            path=name,
            used_as=used_as,
            kind=find_file_system(mountinfo, path.resolve()),
            free_bytes=free,
            writable=os.access(path, os.W_OK | os.X_OK),
        )


def _read_limit(text: str) -> int | None:
    if text.isdigit():
        return int(text)
    return None


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
