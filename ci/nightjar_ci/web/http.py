"""HTTP requests: a password in the URL goes to that host only and appears in no message."""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

TIMEOUT_S = 60.0
MAX_BYTES = 256 * 2**20  # the largest page of a package index is about 10 MB; an endless response is cut off


class HttpError(Exception):
    """A failed request: the message contains no password; `status` is 0 if there was no response."""

    def __init__(self, message: str, status: int, headers: Message | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = body


def get(url: str, *, accept: str, authorization: str | None = None) -> tuple[bytes, str]:
    """The body and content type of a page.

    Raises:
        HttpError: there was no response, or not a successful one.
    """
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
        url: an http or https URL.
        accept: the media types that the caller reads.
        authorization: header for the host of the URL; a redirect sends it to no other host.
        method: the HTTP method.
        body: the request body; a file is streamed.
        headers: further headers.

    Raises:
        HttpError: there was no response, or not a successful one.
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
            return _send(outgoing, body)
        outgoing.add_header("Content-Length", str(body.stat().st_size))
        with body.open("rb") as file:
            outgoing.data = file
            return _send(outgoing, None)
    except urllib.error.HTTPError as error:
        with error:
            page = error.read(4096)
            message = f"{address} answered {error.code} {error.reason}"
            raise HttpError(message, error.code, error.headers, page) from None
    except (OSError, ValueError) as error:
        raise HttpError(f"cannot reach {address}: {getattr(error, 'reason', error)}", 0) from None


def _send(outgoing: urllib.request.Request, body: bytes | None) -> tuple[bytes, Message]:
    if body is not None:
        outgoing.data = body
    with urllib.request.urlopen(outgoing, timeout=TIMEOUT_S) as response:
        return response.read(MAX_BYTES), response.headers


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
