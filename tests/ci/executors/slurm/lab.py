"""A Slurm cluster on this machine: munged, slurmctld and one slurmd per node, in a folder of its own.

In: how many nodes. Out: the path of a `slurm.conf` that makes sbatch, srun and squeue speak to it. The nodes n1, n2,
... are all this machine, on ports of their own; their names resolve inside private mount namespaces only, so that the
machine's /etc/hosts stays as it is. Needs root and Debian's `slurm-wlm` and `munge`; no systemd, cgroups or database.
A cluster that keeps accounts has slurmdbd besides, and holds a job to the memory that it asked for.

    python -m tests.ci.executors.slurm.lab 2 -- nightjar-ci run matrix.toml --executor slurm

Source: slurm.conf(5), cgroup.conf(5), munged(8), unshare(1).
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ci.executors.slurm import accounts
from tests.ci.executors.slurm.accounts import Accounts
from tests.machine import find_lack, find_program

_MEMORY_MB = 4000  # what each node says it has
_START_S = 30.0
_CGROUPS = Path("/sys/fs/cgroup")


class Lab:
    def __init__(self, folder: Path, nodes: int, accounts: bool = False) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.conf = folder / "slurm.conf"
        self.environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._namespaces: dict[str, str] = {}  # of mounts: each daemon's own, and of all that it starts
        controller, accounting, *self._ports = _free_ports(2 + nodes)
        self._controller = controller
        self.accounts = Accounts(folder, folder / "munge.sock", accounting) if accounts else None

    def start(self) -> None:
        """Starts the daemons and waits until every node is idle."""
        for name in ("state", "log", "spool"):
            (self.folder / name).mkdir()
        hosts = Path("/etc/hosts").read_text() + f"127.0.0.1 {' '.join(self.nodes)}\n"
        (self.folder / "hosts").write_text(hosts)
        self._start_munge()
        self.conf.write_text(self._render_conf())
        if self.accounts is not None:
            self.accounts.start()
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        deadline = time.monotonic() + _START_S
        while set(self.node_states().values()) != {"idle"}:
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in sorted((self.folder / "log").iterdir()))
                raise RuntimeError(f"the nodes are {self.node_states()} after {_START_S} s, expected idle:\n{logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        with suppress(subprocess.SubprocessError):
            self.ask("scancel", "--user=root")
        for process in reversed(self._daemons.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._daemons.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for namespace in self._namespaces.values():
            _kill(_inside(namespace))
        if self.accounts is not None:
            self.accounts.stop()
            left = [str(_CGROUPS / "memory" / f"slurm_{node}") for node in self.nodes]
            subprocess.run(["find", *left, "-depth", "-type", "d", "-delete"], check=False, capture_output=True)

    def ask(self, *command: str) -> str:
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL
        ).stdout

    def node_states(self) -> dict[str, str]:
        """Node name to its state, such as `idle` or `drained`; empty while the controller starts."""
        with suppress(subprocess.CalledProcessError):
            lines = self.ask("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
            return dict(line.split()[:2] for line in lines)
        return {}

    def start_node(self, node: str) -> None:
        self._daemon(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Ends a node as a power failure does: its slurmd and whatever it runs are gone at once."""
        _kill(_inside(self._namespaces[node]))
        self._daemons.pop(node).wait()

    @contextmanager
    def without_names(self) -> Iterator[None]:
        """The names of the nodes resolve nowhere while the context lives."""
        hosts = self.folder / "hosts"
        kept = hosts.read_text()
        hosts.write_text(Path("/etc/hosts").read_text())
        try:
            yield
        finally:
            hosts.write_text(kept)

    def _daemon(self, name: str, program: str, *options: str) -> None:
        inside = 'mount --bind "$0" /etc/hosts && exec "$@"'
        command = [find_program(program), *options]
        log = (self.folder / "log" / f"{name}.out").open("wb")
        with log:
            process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, self.folder / "hosts", *command],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons[name] = process
        ours = str(Path("/proc/self/ns/mnt").readlink())
        while (found := str(Path(f"/proc/{process.pid}/ns/mnt").readlink())) == ours:
            time.sleep(0.002)
        self._namespaces[name] = found

    def _start_munge(self) -> None:
        """A munged with a key and a socket of its own, beside the machine's if there is one."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        paths = {"key-file": key, "socket": self.folder / "munge.sock"}
        paths |= {f"{name}-file": self.folder / "log" / f"munge.{name}" for name in ("log", "pid", "seed")}
        command = [find_program("munged"), "--foreground", "--force", "--num-threads=4"]
        command += [f"--{name}={path}" for name, path in paths.items()]
        self._daemons["munged"] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_S
        while not paths["socket"].exists():
            if self._daemons["munged"].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"munged does not start: {paths['log-file'].read_text()[-1000:]}")
            time.sleep(0.02)

    def _render_conf(self) -> str:
        host = socket.gethostname().partition(".")[0]
        cpus = len(os.sched_getaffinity(0))
        settings = {
            "ClusterName": "lab",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder}/munge.sock,cred_expire=5",  # a requeued job waits for as long
            "CryptoType": "crypto/munge",
            "MpiDefault": "none",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "ReturnToService": "1",  # a node that was silent is used again; one that was set down is not
            "SlurmctldPort": str(self._controller),
            "SlurmdTimeout": "5",  # a node that is silent for longer has failed
            "KillWait": "2",
            "MinJobAge": "300",
            "SchedulerParameters": "bf_interval=1,sched_interval=2,sched_min_interval=0,batch_sched_delay=0",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/spool/%n",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/slurmd-%n.pid",
            "SlurmctldLogFile": f"{self.folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/log/slurmd-%n.log",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
        }
        if self.accounts is not None:
            settings |= self.accounts.settings | self._hold_to_memory()
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory={_MEMORY_MB}"
            for node, port in zip(self.nodes, self._ports, strict=True)
        ]
        everywhere = f"Nodes={','.join(self.nodes)} MaxTime=INFINITE State=UP"
        lines.append(f"PartitionName=lab Default=YES PriorityTier=1 {everywhere}")
        lines.append(f"PartitionName=urgent PriorityTier=10 {everywhere}")
        return "\n".join(lines) + "\n"

    def _hold_to_memory(self) -> dict[str, str]:
        if find_lack("slurm_memory") is not None:
            return {}
        lines = ("CgroupPlugin=cgroup/v1", f"CgroupMountpoint={_CGROUPS}", "ConstrainRAMSpace=yes")
        (self.folder / "cgroup.conf").write_text("\n".join(lines) + "\n")
        return {"TaskPlugin": "task/cgroup", "SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": "500"}


@contextmanager
def running_lab(nodes: int, accounts: bool = False) -> Iterator[Lab]:
    lab = Lab(Path(tempfile.mkdtemp(prefix="slurm-")), nodes, accounts)  # short: a socket's path has at most 107 bytes
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
        shutil.rmtree(lab.folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _inside(namespace: str) -> list[int]:
    """The processes of a mount namespace: a node's slurmd, its steps and whatever they have started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str((place / "ns" / "mnt").readlink()) == namespace:
                found.append(int(place.name))
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def install() -> None:
    """Installs Slurm with apt, where it is missing and that can be done."""
    if find_lack("slurm_accounts") is None or os.getuid() != 0 or not Path("/usr/bin/apt-get").exists():
        return
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ("-qq", "install", "-y", "--no-install-recommends")
    for command in (("apt-get", "-qq", "update"), ("apt-get", *options, "slurm-wlm", "munge", *accounts.PACKAGES)):
        subprocess.run(command, env=environ, check=False, stdout=sys.stderr)
    find_lack.cache_clear()


def main(arguments: list[str]) -> int:
    install()
    if (lack := find_lack("slurm")) is not None:
        print(f"error: {lack}", file=sys.stderr)
        return 3
    with running_lab(int(arguments[0])) as lab:
        return subprocess.run(arguments[2:], env=lab.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
