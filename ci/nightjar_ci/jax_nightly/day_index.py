"""One day of JAX as a package index on the loopback interface, for uv.

In: a day, and the default index. Out: uv's options for an index that has JAX's packages and no other: the wheels of
that day, and the releases of the default index. uv asks it first and takes every other package from the default index,
so that neither index can answer for a package of the other one (`--index-strategy first-index`, which is uv's default).
It gives every file an upload time, so that `--exclude-newer` works with an index that has none.

Source: packaging.python.org/en/latest/specifications/simple-repository-api (PEP 503, 691, 700, 714).
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.jax_nightly.days import NAMES, Day
from nightjar_ci.web.package_index import File, read_files

_JSON = "application/vnd.pypi.simple.v1+json"
_PAGE = re.compile(r"/index/([a-z0-9-]+)/")


@contextmanager
def serve_day(day: Day, default_index: str) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """The options with which uv asks an index of one day first, and the variables with which it reaches that.

    Args:
        default_index: URL of the index with JAX's releases.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(day, default_index))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hosts = [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]
    past_proxies = dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(host for host in hosts if host))
    try:
        yield ("--index", f"nightly=http://127.0.0.1:{server.server_port}/index/"), past_proxies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def render_page(name: str, files: tuple[File, ...], date: str) -> dict[str, Any]:
    day = datetime.fromisoformat(f"{date}T00:00:00+00:00")
    rendered = [
        {
            "filename": file.name,
            "url": file.url,
            "hashes": {} if file.sha256 is None else {"sha256": file.sha256},
            "upload-time": (file.uploaded or day).isoformat(),
            "yanked": file.yanked,
            "requires-python": file.requires_python,
            "core-metadata": file.has_metadata,
        }
        for file in files
    ]
    return {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": rendered}


def _make_handler(day: Day, default_index: str) -> type[BaseHTTPRequestHandler]:
    @functools.cache
    def render(name: str) -> bytes:
        """A page, made once: `images bump` asks for it with each of some sixty locks."""
        files = (*day.files.get(name, ()), *_read_releases(name, default_index))
        return json.dumps(render_page(name, files, day.date)).encode()

    class Handler(BaseHTTPRequestHandler):
        """Pages of JAX's packages; 404 for any other package."""

        def do_GET(self) -> None:
            page = _PAGE.fullmatch(self.path)
            if page is None or page[1] not in NAMES:
                self.send_error(404)
                return
            body = render(page[1])
            self.send_response(200)
            self.send_header("Content-Type", _JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    return Handler


def _read_releases(name: str, default_index: str) -> tuple[File, ...]:
    try:
        return tuple(read_files(name, default_index))
    except (InputError, NightjarError):
        return ()  # uv then reports that it finds no release
