"""How does a test get a PostgreSQL of its own? A new cluster in a folder, reached through a socket, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.machine import LackError, find_program


def find_programs() -> Path:
    """The folder of initdb and pg_ctl: that on PATH, else the newest of Debian, which keeps them off PATH."""
    with suppress(LackError):
        return Path(find_program("initdb")).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[4].zfill(3))
    if not places:
        raise LackError("initdb is not installed")
    return places[-1].parent


@contextmanager
def running_postgres(programs: Path, timeout_s: float = 60.0) -> Iterator[str]:
    """A server for as long as the context lives; its URL. Each step of starting and ending it has its time limit."""
    user = None
    if os.getuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next(name for name in ("postgres", "nobody") if name in names)
    cluster = Path(tempfile.mkdtemp(prefix="pg-"))  # not tmp_path: a socket's path has at most 107 bytes
    if user is not None:
        shutil.chown(cluster, user)

    def run(*command: str) -> None:
        subprocess.run(command, user=user, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=timeout_s)

    try:
        run(str(programs / "initdb"), "--pgdata", str(cluster / "data"), "--auth", "trust", "--username", "tester")
        options = f"-c listen_addresses='' -c unix_socket_directories={cluster} -c fsync=off"
        control = (str(programs / "pg_ctl"), "--pgdata", str(cluster / "data"), "--wait", "--silent")
        run(*control, "--log", str(cluster / "log"), "--options", options, "start")
        try:
            yield f"postgresql://tester@/postgres?host={cluster}"
        finally:
            run(*control, "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(cluster)
