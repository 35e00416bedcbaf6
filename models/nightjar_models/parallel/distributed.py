"""Which processes train together, and are they all there?

In: options or Slurm's environment. Out: a `Cluster`, or None for a process of its own. `meet` joins the processes over
TCP before JAX starts, because `jax.distributed` ends a process with SIGABRT and a stack trace where a peer is missing:
`meet` says instead who did not come. Nothing here imports JAX but `start_jax`.

Protocol: every process but the first connects to the coordinator's port and sends a line `nightjar-models/1 ID COUNT`;
when all are there, the first one answers `go` and frees the port, on which JAX's coordination service then listens.

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
HEARTBEAT_TIMEOUT_S = 30  # JAX waits 100 s before it believes that a silent process is dead
_FIRST_PORT, _PORTS = 61440, 4096  # above the ports that Linux hands out by itself
_RETRY_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The processes of one run.

    Attributes:
        coordinator: `host:port` of the first process.
        processes: how many there are.
        process_id: which of them this is, from 0.
        local_device: the one GPU of its machine that this process uses; None for all that it sees.
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
        """How many of a mesh's devices each process has.

        Raises:
            InputError: they cannot be shared out evenly.
        """
        if devices % self.processes:
            raise InputError(
                f"--mesh: {devices} devices cannot be shared out evenly among {self.processes} processes.",
                "choose a mesh whose size is a multiple of --processes",
            )
        return devices // self.processes


def find_cluster(
    coordinator: str | None, processes: int | None, process_id: int | None, environ: Mapping[str, str]
) -> Cluster | None:
    """The cluster that the options name, else the one that Slurm's environment tells of.

    Args:
        coordinator: `host:port`, or None.
        processes: how many, or None; 1 means a process of its own, whatever Slurm says.
        process_id: which one, or None.
        environ: the environment variables.

    Raises:
        InputError: the options are incomplete, or not an address or a number that fits.
    """
    if processes == 1:
        return None
    if coordinator is None and processes is None and process_id is None:
        return _read_slurm(environ)
    if coordinator is None or processes is None or process_id is None:
        raise InputError(
            f"--coordinator {coordinator}, --processes {processes}, --process-id {process_id}: expected all three.",
            "under srun none is needed",
        )
    match = re.fullmatch(r"(\S+):([0-9]{1,5})", coordinator)
    if match is None or not 0 < int(match[2]) < 65536:
        raise InputError(f"--coordinator {coordinator}: expected HOST:PORT, such as node1:1234.")
    if process_id >= processes:
        raise InputError(f"--process-id {process_id}: expected less than --processes ({processes}).")
    return Cluster(coordinator=coordinator, processes=processes, process_id=process_id)


def _read_slurm(environ: Mapping[str, str]) -> Cluster | None:
    processes = int(environ.get("SLURM_STEP_NUM_TASKS", 1))
    if processes == 1 or "SLURM_PROCID" not in environ:
        return None
    step = int(environ["SLURM_JOB_ID"]) + 97 * int(environ.get("SLURM_STEP_ID", 0))
    host = first_host(environ["SLURM_STEP_NODELIST"])
    alone = environ.get("SLURM_STEP_TASKS_PER_NODE", "").split("(")[0] == "1"
    one_visible = len(environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")) == 1  # Slurm has bound it already
    return Cluster(
        coordinator=f"{host}:{_FIRST_PORT + step % _PORTS}",
        processes=processes,
        process_id=int(environ["SLURM_PROCID"]),
        local_device=None if alone or one_visible else int(environ.get("SLURM_LOCALID", 0)),
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
    """Waits until all processes of the cluster are there.

    Raises:
        ClusterError: the coordinator's name is unknown, nobody answers there, its port is taken, or a process is
            missing after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    host, _, port = cluster.coordinator.rpartition(":")
    if cluster.leads:
        _gather(cluster, int(port), deadline)
    else:
        _join(cluster, _resolve(cluster, host, int(port), deadline), deadline)


def _resolve(cluster: Cluster, host: str, port: int, deadline: float) -> tuple[str, int]:
    """The address behind the name; a name server that does not answer is left behind in a thread of its own."""
    found: list[tuple[str, int] | OSError] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][4][:2])  # type: ignore[arg-type]
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found or isinstance(found[0], OSError):
        reason = found[0].strerror if found else "no answer from the name server"  # type: ignore[union-attr]
        raise ClusterError(
            f"--coordinator {cluster.coordinator}: the host's name cannot be resolved: {reason}.",
            "name a host that every process can reach, or its address",
        )
    return found[0]


def _join(cluster: Cluster, address: tuple[str, int], deadline: float) -> None:
    """Announces this process and waits for `go`; the first process may come later than this one."""
    hello = f"{HELLO} {cluster.process_id} {cluster.processes}\n".encode()
    reason = "nobody listens there"
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
        f"--coordinator {cluster.coordinator}: process {cluster.process_id} could not join: {reason}.",
        "is process 0 running there, with the same --processes, and all the others?",
    )


def _gather(cluster: Cluster, port: int, deadline: float) -> None:
    """Accepts every other process once, then lets all go."""
    there: dict[int, socket.socket] = {}
    try:
        server = socket.create_server(("", port), backlog=cluster.processes)
    except OSError as error:
        raise ClusterError(
            f"--coordinator {cluster.coordinator}: port {port} cannot be used: {error.strerror}.", "name a free port"
        ) from None
    with server, contextlib.ExitStack() as leaving:
        while len(there) < cluster.processes - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted({*range(1, cluster.processes)} - {*there})
                raise ClusterError(
                    f"--coordinator {cluster.coordinator}: of {cluster.processes} processes {missing} did not come.",
                    "start all of them within half a minute, each with its own --process-id",
                )
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            leaving.enter_context(connection)
            _admit(cluster, connection, there)
        for other in there.values():
            _answer(other, "go")


def _admit(cluster: Cluster, connection: socket.socket, there: dict[int, socket.socket]) -> None:
    """Takes a process in; a stranger or one that disagrees is sent away."""
    connection.settimeout(1.0)
    try:
        line = connection.makefile("r").readline(100)
    except (OSError, UnicodeDecodeError):
        line = ""
    match = re.fullmatch(rf"{HELLO} ([0-9]+) ([0-9]+)\n", line)
    if match is None:
        _answer(connection, "")
    elif int(match[2]) != cluster.processes:
        _answer(connection, f"process 0 has --processes {cluster.processes}, this one {match[2]}")
    elif int(match[1]) in there or int(match[1]) == 0:
        _answer(connection, f"another process has --process-id {match[1]}")
    else:
        there[int(match[1])] = connection


def _answer(connection: socket.socket, text: str) -> None:
    with connection, contextlib.suppress(OSError):  # where it is gone, JAX will notice the missing process
        connection.sendall(f"{text}\n".encode() if text else b"")


def start_jax(cluster: Cluster) -> None:
    """Starts JAX's distributed runtime; on the CPU collectives go through Gloo. Every process has to be there."""
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
