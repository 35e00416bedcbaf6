"""Discovery and rendezvous of the processes of a distributed run.

In: variables of JAX or of Slurm. Out: a `Cluster`, or None for a single process. `meet` connects the processes over
TCP before JAX starts, because `jax.distributed` ends a process with SIGABRT and a stack trace if a peer is missing;
`meet` names the missing processes instead. Only `start_jax` imports JAX.

Protocol: every process but the first connects to the coordinator's port and sends a line `nightjar-models/1 ID COUNT`;
when all have connected, the first answers `go` and frees the port, on which JAX's coordination service then listens.

Source: Slurm's srun manual, section OUTPUT ENVIRONMENT VARIABLES; jax/_src/clusters/slurm_cluster.py for the port.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import threading
import time
from collections.abc import Mapping

from nightjar_models.errors import ClusterError, InputError

HELLO = "nightjar-models/1"
MEET_TIMEOUT_S = 25.0
HEARTBEAT_TIMEOUT_S = 30  # JAX's default is 100 s
_FIRST_PORT, _PORTS = 61440, 4096  # above Linux's ephemeral ports
_RETRY_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The processes of one run.

    Attributes:
        coordinator: `host:port` of the first process.
        process_id: number of this process, from 0.
        local_device: the one GPU of its machine that this process uses; None for all visible ones.
    """

    coordinator: str
    processes: int
    process_id: int
    local_device: int | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the result."""
        return self.process_id == 0

    def share(self, devices: int) -> int:
        """Number of a mesh's devices per process."""
        if devices % self.processes:
            raise InputError(
                f"--mesh: {devices} devices cannot be divided evenly among {self.processes} processes.",
                "choose a mesh whose size is a multiple of them",
            )
        return devices // self.processes


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster that JAX's variables name, else Slurm's; one process of JAX is alone whatever Slurm says."""
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = {name: environ[name] for name in names if name in environ}
    if given.get("JAX_NUM_PROCESSES") == "1":
        return None
    if not given:
        return _read_slurm(environ)
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    address, processes, process_id = (given.get(name, "") for name in names)
    if not (address and processes.isdecimal() and process_id.isdecimal()):
        raise InputError(f"{shown}: expected {', '.join(names)}, two of them numbers.", "under srun none is needed")
    match = re.fullmatch(r"(\S+):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise InputError(f"JAX_COORDINATOR_ADDRESS={address}: expected HOST:PORT, such as node1:1234.")
    if int(process_id) >= int(processes):
        raise InputError(f"JAX_PROCESS_ID={process_id}: expected less than JAX_NUM_PROCESSES ({processes}).")
    return Cluster(coordinator=address, processes=int(processes), process_id=int(process_id))


def _read_slurm(environ: Mapping[str, str]) -> Cluster | None:
    processes = int(environ.get("SLURM_STEP_NUM_TASKS", 1))
    if processes == 1 or "SLURM_PROCID" not in environ:
        return None
    step = int(environ["SLURM_JOB_ID"]) + 97 * int(environ.get("SLURM_STEP_ID", 0))
    host = first_host(environ["SLURM_STEP_NODELIST"])
    alone = environ.get("SLURM_STEP_TASKS_PER_NODE", "").split("(")[0] == "1"
    listed = "JAX_LOCAL_DEVICE_IDS" in environ  # then JAX takes those by itself
    one_visible = len(environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")) == 1  # Slurm has bound it already
    return Cluster(
        coordinator=f"{host}:{_FIRST_PORT + step % _PORTS}",
        processes=processes,
        process_id=int(environ["SLURM_PROCID"]),
        local_device=None if alone or one_visible or listed else int(environ.get("SLURM_LOCALID", 0)),
    )


def first_host(nodes: str) -> str:
    """The first of Slurm's compressed list of hosts.

    >>> first_host("gpu[007-009,12],login1"), first_host("a1,a2"), first_host("solo")
    ('gpu007', 'a1', 'solo')
    """
    match = re.match(r"([^\[,]+)(?:\[([0-9]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise InputError(f"SLURM_STEP_NODELIST {nodes!r}: expected hosts, such as gpu[007-009].")
    return match[1] + (match[2] or "") + (match[3] or "")


def meet(cluster: Cluster, timeout_s: float = MEET_TIMEOUT_S) -> None:
    """Waits until all processes of the cluster have connected."""
    deadline = time.monotonic() + timeout_s
    host, _, port = cluster.coordinator.rpartition(":")
    if cluster.leads:
        _gather(cluster, int(port), deadline)
    else:
        _join(cluster, _resolve(cluster, host, int(port), deadline), deadline)


def _resolve(cluster: Cluster, host: str, port: int, deadline: float) -> tuple[str, int]:
    """The address of a host name; looks it up in a thread, which is abandoned if the name server does not answer."""
    results: list[tuple[str, int] | OSError] = []

    def look_up() -> None:
        try:
            results.append(socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][4][:2])  # type: ignore[arg-type]
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    address = results[0] if results else OSError(0, "no answer from the name server")
    if isinstance(address, OSError):
        reason = address.strerror
        raise ClusterError(
            f"coordinator {cluster.coordinator}: the host's name cannot be resolved: {reason}.",
            "name a host that every process can reach, or its address",
        )
    return address


def _join(cluster: Cluster, address: tuple[str, int], deadline: float) -> None:
    """Announces this process and waits for `go`; the first process may come later than this one."""
    hello = f"{HELLO} {cluster.process_id} {cluster.processes}\n".encode()
    reason = "nothing listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(address, timeout=left) as connection:
                connection.settimeout(max(_RETRY_S, deadline - time.monotonic()))
                connection.sendall(hello)
                answer = connection.makefile("r").readline().strip()
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            if answer == "go":
                return
            reason = answer or "the connection was closed"
            if answer:
                break
        time.sleep(_RETRY_S)
    raise ClusterError(
        f"coordinator {cluster.coordinator}: process {cluster.process_id} could not join: {reason}.",
        "check that process 0 runs there with the same JAX_NUM_PROCESSES, and that all others run",
    )


def _gather(cluster: Cluster, port: int, deadline: float) -> None:
    """Accepts every other process once, then sends `go` to all."""
    connected: dict[int, socket.socket] = {}
    try:
        server = socket.create_server(("", port), backlog=cluster.processes)
    except OSError as error:
        raise ClusterError(
            f"coordinator {cluster.coordinator}: port {port} cannot be used: {error.strerror}.", "name a free port"
        ) from None
    with server, contextlib.ExitStack() as leaving:
        while len(connected) < cluster.processes - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted({*range(1, cluster.processes)} - {*connected})
                raise ClusterError(
                    f"coordinator {cluster.coordinator}: of {cluster.processes} processes {missing} did not connect.",
                    "start all of them within half a minute, each with its own JAX_PROCESS_ID",
                )
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            leaving.enter_context(connection)
            _admit(cluster, connection, connected)
        for other in connected.values():
            _answer(other, "go")


def _admit(cluster: Cluster, connection: socket.socket, connected: dict[int, socket.socket]) -> None:
    """Accepts a process; rejects other programs and processes whose options disagree."""
    connection.settimeout(1.0)
    try:
        line = connection.makefile("r").readline(100)
    except (OSError, UnicodeDecodeError):
        line = ""
    match = re.fullmatch(rf"{HELLO} ([0-9]+) ([0-9]+)\n", line)
    if match is None:
        _answer(connection, "")
    elif int(match[2]) != cluster.processes:
        _answer(connection, f"process 0 has JAX_NUM_PROCESSES={cluster.processes}, this one {match[2]}")
    elif int(match[1]) in connected or int(match[1]) == 0:
        _answer(connection, f"another process has JAX_PROCESS_ID={match[1]}")
    else:
        connected[int(match[1])] = connection


def _answer(connection: socket.socket, text: str) -> None:
    with connection, contextlib.suppress(OSError):  # if it is gone, JAX will notice the missing process
        connection.sendall(f"{text}\n".encode() if text else b"")


def start_jax(cluster: Cluster) -> None:
    """Starts JAX's distributed runtime; on the CPU collectives use Gloo. Every process must take part."""
    import jax

    jax.distributed.initialize(
        cluster.coordinator,
        cluster.processes,
        cluster.process_id,
        local_device_ids=cluster.local_device,
        cluster_detection_method="deactivate",
        initialization_timeout=60,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=HEARTBEAT_TIMEOUT_S,
    )
