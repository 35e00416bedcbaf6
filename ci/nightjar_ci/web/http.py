"""HTTP requests: a password in the URL goes to that host only and appears in no message.

The other side is not trusted: a response has a limit on its size and on its time, however slowly it comes.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

TIMEOUT_S = 60.0  # of silence
DEADLINE_S = 600.0  # of a whole response without a file to send: 256 MB at 0.4 MB/s
MAX_BYTES = 256 * 2**20  # the largest page of a package index is about 10 MB


class HttpError(Exception):
    """A failed request: the message contains no password; `status` is 0 if there was no response."""

    def __init__(self, message: str, status: int, headers: Message | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = body


def get(url: str, *, accept: str, authorization: str | None = None) -> tuple[bytes, str]:
    body, headers = request(url, accept=accept, authorization=authorization)
    return body, headers.get_content_type()


def request(
    url: str,
    *,
    accept: str = "*/*",
    authorization: str | None = None,
    method: str = "GET",
    body: bytes | Path | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[bytes, Message]:
    """The body and headers of a response; a user and password in the URL are sent as basic authorization.

    Args:
        authorization: header for the host of the URL; a redirect sends it to no other host.
        body: the request body; a file is streamed.
    """
    address, credentials = split_credentials(url)
    if urlsplit(address).scheme not in ("http", "https"):
        raise HttpError(f"{address!r} is not an http or https URL", 0)
    outgoing = urllib.request.Request(address, method=method)
    for name, value in {"Accept": accept, "User-Agent": "nightjar-ci", **(headers or {})}.items():
        outgoing.add_header(name, value)
    if (authorization := authorization or credentials) is not None:
        outgoing.add_unredirected_header("Authorization", authorization)
    try:
        if not isinstance(body, Path):
            return _send(outgoing, body, deadline_s=DEADLINE_S)
        with body.open("rb") as file:
            outgoing.data = file  # which drops a length that was set before
            outgoing.add_header("Content-Length", str(body.stat().st_size))
            return _send(outgoing, None, deadline_s=None)
    except urllib.error.HTTPError as error:
        with error:
            page = b""
            with contextlib.suppress(OSError, http.client.HTTPException):
                page = error.read(4096)
            message = f"{address} answered {error.code} {error.reason}"
            raise HttpError(message, error.code, error.headers, page) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HttpError(
            f"cannot reach {address}: {getattr(error, 'reason', None) or error or type(error).__name__}", 0
        ) from None


def _send(outgoing: urllib.request.Request, body: bytes | None, *, deadline_s: float | None) -> tuple[bytes, Message]:
    if body is not None:
        outgoing.data = body
    with _Watch(deadline_s) as watch:
        opener = urllib.request.build_opener(_Watching(watch), _Following())
        try:
            with opener.open(outgoing, timeout=TIMEOUT_S) as response:
                content: bytes = response.read(MAX_BYTES + 1)
        except (OSError, http.client.HTTPException):
            watch.check()
            raise
        watch.check()
        if len(content) > MAX_BYTES:
            raise ValueError(f"the response is larger than {MAX_BYTES // 2**20} MB")
        if response.length:  # the rest of its Content-Length
            raise ValueError(f"the response ended {response.length:,} bytes too early")
        return content, response.headers


class _Watch:
    """Ends the connections of a request when its time is over: a socket's own timeout limits only each silence."""

    def __init__(self, deadline_s: float | None) -> None:
        self._deadline_s = deadline_s
        self._ends_at = float("inf") if deadline_s is None else time.monotonic() + deadline_s
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(deadline_s or 0.0, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Watch:
        if self._deadline_s is not None:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def add(self, connection: socket.socket) -> None:
        self._sockets.append(connection)
        self.check()

    def check(self) -> None:
        if time.monotonic() >= self._ends_at:
            raise TimeoutError(f"no whole response within {self._deadline_s:g} s")

    def _end(self) -> None:
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Following(urllib.request.HTTPRedirectHandler):
    """Follows redirects; before Python 3.13, urllib makes a GET of a HEAD (github.com/python/cpython/issues/99730)."""

    def redirect_request(self, req: urllib.request.Request, *details: Any) -> urllib.request.Request | None:
        redirected = super().redirect_request(req, *details)
        if redirected is not None and req.get_method() == "HEAD":
            redirected.method = "HEAD"
        return redirected


class _Watching(urllib.request.HTTPSHandler):
    """Opens http and https addresses by connections that a `_Watch` knows."""

    handler_order = 400  # before urllib's own handler of http

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPConnection, self._watch), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPSConnection, self._watch), req)


def _watched(kind: type[http.client.HTTPConnection], watch: _Watch) -> type[http.client.HTTPConnection]:
    class Connection(kind):  # type: ignore[valid-type, misc]
        def connect(self) -> None:
            super().connect()
            watch.add(self.sock)

    return Connection


def split_credentials(url: str) -> tuple[str, str | None]:
    """A URL without its user and password, and those as an `Authorization` header.

    >>> split_credentials("https://user:s3cret@index.example/root")
    ('https://index.example/root', 'Basic dXNlcjpzM2NyZXQ=')
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    token = base64.b64encode(unquote(user).encode()).decode("ascii")
    return urlunsplit(parts._replace(netloc=host)), f"Basic {token}"


def hide_passwords(text: str) -> str:
    """A text in which no URL shows its user and password.

    >>> hide_passwords("at https://user:s3cret@host/root/")
    'at https://***@host/root/'
    """
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)
