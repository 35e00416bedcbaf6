"""How is the web asked? One request, with the password of the address sent to its host alone and never shown."""

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
MOST_BYTES = 256 * 2**20  # the largest page of a package index is some 10 MB; an answer without end is cut off


class HttpError(Exception):
    """A page could not be fetched: its message names no password; `status` is 0 where there was no answer."""

    def __init__(self, message: str, status: int, headers: Message | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = body


def get(url: str, *, accept: str, authorization: str | None = None) -> tuple[bytes, str]:
    """The body of a page, and its content type.

    Raises:
        HttpError: no answer, or one that is no success.
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
    """The body of an answer, and its headers; a user and password in the address are sent as basic authorization.

    Args:
        url: an http or https address.
        accept: the media types that are understood.
        authorization: header for the host of the address; no other host gets it after a redirect.
        method: of the request.
        body: what is sent; a file is read as it is sent.
        headers: further headers.

    Raises:
        HttpError: no answer, or one that is no success.
    """
    bare, found = split_credentials(url)
    if urlsplit(bare).scheme not in ("http", "https"):
        raise HttpError(f"{bare!r} is no http or https address", 0)
    asked = urllib.request.Request(bare, method=method)
    for name, value in {"Accept": accept, "User-Agent": "nightjar-ci", **(headers or {})}.items():
        asked.add_header(name, value)
    if (authorization := authorization or found) is not None:
        asked.add_unredirected_header("Authorization", authorization)
    try:
        if not isinstance(body, Path):
            return _send(asked, body)
        asked.add_header("Content-Length", str(body.stat().st_size))
        with body.open("rb") as file:
            asked.data = file
            return _send(asked, None)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(4096)
            raise HttpError(f"{bare} answers {error.code} {error.reason}", error.code, error.headers, said) from None
    except (OSError, ValueError) as error:
        raise HttpError(f"{bare} cannot be reached: {getattr(error, 'reason', error)}", 0) from None


def _send(asked: urllib.request.Request, body: bytes | None) -> tuple[bytes, Message]:
    if body is not None:
        asked.data = body
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
        return answer.read(MOST_BYTES), answer.headers


def split_credentials(url: str) -> tuple[str, str | None]:
    """An address without user and password, and these as an `Authorization` header.

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
    """A text without the user and password of any address in it.

    >>> hide_passwords("at https://user:s3cret@host/root/")
    'at https://***@host/root/'
    """
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)
