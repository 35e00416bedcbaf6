"""A package index on the engine's bridge, which holds what a test says: real builds install from it."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from packaging.utils import parse_wheel_filename

from tests.ci.images.lock.test_bump import make_wheel


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


def fill(folder: Path, *releases: str) -> dict[str, str]:
    """Makes a wheel of each release (`NAME==VERSION`) in a folder; returns the SHA-256 of each."""
    folder.mkdir()
    digests = {}
    for release in releases:
        name, _, version = release.partition("==")
        make_wheel(folder, name.replace("-", "_"), version)
        wheel = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        digests[release] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return digests


@contextmanager
def serve_index(folder: Path, host: str) -> Iterator[str]:
    for wheel in list(folder.glob("*.whl")):
        project = folder / parse_wheel_filename(wheel.name)[0]
        project.mkdir(exist_ok=True)
        wheel.rename(project / wheel.name)
        links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in project.glob("*.whl"))
        (project / "index.html").write_text(f"<!doctype html><html><body>{links}</body></html>")
    server = ThreadingHTTPServer((host, 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
