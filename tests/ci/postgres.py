"""How does a test get a PostgreSQL of its own? A new cluster in a folder, reached through a socket, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def find_programs() -> Path | None:
    """The folder of initdb and pg_ctl; Debian keeps them off PATH. None where they or the driver are missing."""
    if find_spec("psycopg") is None:
        return None
    places = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


@contextmanager
def running_postgres(programs: Path) -> Iterator[str]:
    """A server for as long as the context lives; its URL."""
    user = None
    if os.getuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next(name for name in ("postgres", "nobody") if name in names)
    cluster = Path(tempfile.mkdtemp(prefix="pg-"))  # not tmp_path: a socket's path has at most 107 bytes
    if user is not None:
        shutil.chown(cluster, user)

    def run(*command: str) -> None:
        subprocess.run(command, user=user, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60)

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
