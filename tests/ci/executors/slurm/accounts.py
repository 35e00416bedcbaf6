"""The accounts of a Slurm cluster: slurmdbd over a MariaDB of its own, which listens on a socket in its folder only.

In: a folder and the socket of munged. Out: what `slurm.conf` must say so that `sacct` knows every job. Needs root and
Debian's `slurmdbd`, `mariadb-server-core` and `mariadb-client-core`; uses no user, port or file of another MariaDB.

Source: slurmdbd.conf(5), mariadb-install-db(1).
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.machine import find_program

PACKAGES = ("slurmdbd", "mariadb-server-core", "mariadb-client-core")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_START_S = 30.0


class Accounts:
    def __init__(self, folder: Path, munge: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self._munge = munge
        self._environ = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._environ["MYSQL_UNIX_PORT"] = str(folder / "maria.sock")  # where the client library finds the database
        self._maria: subprocess.Popen[bytes] | None = None
        self._slurmdbd: subprocess.Popen[bytes] | None = None
        self.settings = {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(port),
            "AccountingStoragePass": f"socket={munge}",  # of munged, not a password
        }

    def start(self) -> None:
        """Makes an empty database, and starts both daemons; `slurm.conf` is in the folder by now."""
        data = f"--datadir={self._folder / 'maria'}"
        options = ["--no-defaults", "--user=root", data]
        options += ["--innodb-flush-method=nosync", "--innodb-log-file-size=8M"]  # it need not outlive the machine
        made = ["mariadb-install-db", *options, "--skip-test-db"]
        made.append("--auth-root-authentication-method=socket")  # root of this machine, and no password
        subprocess.run(made, env=self._environ, check=True, capture_output=True, timeout=120)
        options += ["--skip-networking", f"--socket={self._folder / 'maria.sock'}"]
        self._maria = self._daemon("mariadbd", *options, f"--pid-file={self._folder / 'maria.pid'}")
        _wait_for((self._folder / "maria.sock").exists, self._maria, self._folder / "log" / "mariadbd.out")
        settings = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self._munge}",
            "DbdHost": socket.gethostname().partition(".")[0],
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self._port),
            "SlurmUser": "root",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
            "StorageUser": "root",
            "StorageLoc": "accounts",
            "PidFile": str(self._folder / "slurmdbd.pid"),
            "LogFile": str(self._folder / "log" / "slurmdbd.log"),
        }
        conf = self._folder / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.start_slurmdbd()
        added = ("sacctmgr", "--immediate", "add", "cluster", "lab")
        subprocess.run(added, env=self._environ, check=True, capture_output=True, timeout=60)

    def start_slurmdbd(self) -> None:
        """Starts the daemon that `sacct` asks, and waits until it answers."""
        self._slurmdbd = self._daemon("slurmdbd", "-D")
        _wait_for(self._answers, self._slurmdbd, self._folder / "log" / "slurmdbd.log")

    def stop_slurmdbd(self) -> None:
        """Ends it; the controller keeps what it has to say until it is back."""
        _end(self._slurmdbd)
        self._slurmdbd = None

    def stop(self) -> None:
        self.stop_slurmdbd()
        _end(self._maria)

    def _answers(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self._port)) == 0

    def _daemon(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log" / f"{program}.out").open("ab") as log:
            command = [find_program(program), *options]
            return subprocess.Popen(
                command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def _wait_for(ready: Callable[[], bool], daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{daemon.args!r} does not start:\n{log.read_text()[-2000:] if log.exists() else ''}")
        time.sleep(0.02)


def _end(daemon: subprocess.Popen[bytes] | None) -> None:
    if daemon is None:
        return
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(timeout=20)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
