"""What does a repository of images hold, and how does something get there? Asked of its registry over HTTP.

In: a repository such as `ghcr.io/nvidia/jax`. Out: tags, digests, manifests and blobs; and some put there.
A registry that wants a token gets one, with the user and password that `docker login` has left, or as nobody. A blob or
manifest is there whole or not at all: the registry checks its digest.

Source: github.com/opencontainers/distribution-spec (spec.md) and distribution.github.io/distribution/spec/auth/token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.web.http import HttpError, get, request
from nightjar_ci.web.login import DOCKER_HUB, read_login

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
MANIFESTS = ", ".join(
    (
        INDEX_TYPE,
        MANIFEST_TYPE,
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
LOGIN_HINT = "`docker login` leaves a password that is used here"
REFUSED_HINT = (
    "the password that `docker login` has left is wrong, or without this right: `docker login {}` replaces it"
)
REACH_HINT = "is the registry's host and port right, and does it run?"
_MOST_PAGES = 1000
_DIGEST = re.compile(r"[a-z0-9+._-]+:[0-9a-fA-F]{32,}")
_TRIES = 3
_WAIT_S = 1.0


class RegistryError(NightjarError):
    """A registry is not reached, refuses, or answers what nobody can understand: exit code 3.

    `status` is that of its answer; 0 where there was none, None where it could not be understood.
    """

    def __init__(self, message: str, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(message, hint)
        self.status = status


class AbsentError(InputError):
    """The registry has no such repository, tag, manifest or blob: exit code 2."""


@dataclass(slots=True)
class Repository:
    """One repository of a registry.

    Attributes:
        name: as `docker pull` takes it, without tag; registries have lower case only, so ghcr.io/NVIDIA/nightjar, as a
            workflow says, is ghcr.io/nvidia/nightjar.
    """

    name: str
    _authorization: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.name = self.name.lower()

    @property
    def host(self) -> str:
        """The registry: the part before the first slash where it looks like a host, else Docker Hub."""
        first, slash, _ = self.name.partition("/")
        return first if slash and (re.search(r"[.:]", first) or first == "localhost") else DOCKER_HUB

    @property
    def path(self) -> str:
        """The repository inside its registry."""
        if self.host != DOCKER_HUB:
            return self.name.partition("/")[2]
        return self.name if "/" in self.name else f"library/{self.name}"

    def tags(self) -> list[str]:
        """All of its tags.

        Raises:
            AbsentError: there is no such repository.
            RegistryError: the registry is not reached or refuses.
        """
        url: str | None = f"{self._base()}/tags/list?n=1000"
        found: list[str] = []
        for _ in range(_MOST_PAGES):
            if url is None:
                break
            body, headers = self._ask(url, accept="application/json")
            try:
                found += json.loads(body)["tags"] or []
            except (ValueError, KeyError, TypeError):
                raise RegistryError(f"the registry's answer about {self.name} is no list of tags.") from None
            following = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', headers.get("Link", ""))
            url = urljoin(url, following[1]) if following else None
        return found

    def digest(self, tag: str) -> str:
        """The digest of the image behind a tag.

        Raises:
            AbsentError: there is no such tag.
            RegistryError: the registry is not reached, or names no digest.
        """
        _, headers = self._ask(f"{self._base()}/manifests/{tag}", accept=MANIFESTS, method="HEAD")
        digest = headers.get("Docker-Content-Digest", "")
        if not _DIGEST.fullmatch(digest):
            raise RegistryError(f"the registry names no digest of {self.name}:{tag}.")
        return str(digest)

    def find_digest(self, tag: str) -> str | None:
        """The digest behind a tag; None where there is no such tag.

        Raises:
            RegistryError: the registry is not reached or refuses.
        """
        try:
            return self.digest(tag)
        except AbsentError:
            return None

    def read_manifest(self, reference: str) -> tuple[dict[str, Any], bytes]:
        """A manifest or index by tag or digest: parsed, and its bytes.

        Raises:
            AbsentError: there is none.
            RegistryError: it is no JSON object, or not that of the digest asked for.
        """
        body, _ = self._ask(f"{self._base()}/manifests/{reference}", accept=MANIFESTS)
        _check_digest(reference, body, self.name)
        return _read_object(body, f"{self.name}:{reference}"), body

    def read_blob(self, digest: str) -> bytes:
        """A small blob.

        Raises:
            AbsentError: there is none.
            RegistryError: its bytes are not those of the digest.
        """
        body, _ = self._ask(f"{self._base()}/blobs/{digest}")
        _check_digest(digest, body, self.name)
        return body

    def has_blob(self, digest: str) -> bool:
        """Whether a blob is there."""
        try:
            self._ask(f"{self._base()}/blobs/{digest}", method="HEAD")
        except AbsentError:
            return False
        return True

    def put_blob(self, digest: str, content: bytes | Path) -> bool:
        """Puts a blob there unless it is there.

        Returns: whether it was sent.

        Raises:
            RegistryError: the registry is not reached or refuses.
        """
        if self.has_blob(digest):
            return False
        for attempt in range(_TRIES):
            try:
                _, headers = self._ask(f"{self._base()}/blobs/uploads/", method="POST", body=b"")
                place = urljoin(f"{self._base()}/blobs/uploads/", headers.get("Location", ""))
                url = f"{place}{'&' if urlsplit(place).query else '?'}{urlencode({'digest': digest})}"
                octets = {"Content-Type": "application/octet-stream"}
                self._ask(url, method="PUT", body=content, headers=octets)
                return True
            except RegistryError as error:
                if attempt == _TRIES - 1 or not _is_passing(error):
                    raise
                time.sleep(_WAIT_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def read_referrers(self, digest: str) -> dict[str, Any]:
        """The index of the artifacts whose subject is a manifest, as the registry keeps it.

        Raises:
            AbsentError: this registry keeps none.
            RegistryError: it is not reached, or its answer is no JSON object.
        """
        body, _ = self._ask(f"{self._base()}/referrers/{digest}", accept=INDEX_TYPE)
        return _read_object(body, f"{self.name}: referrers of {digest}")

    def put_manifest(self, reference: str, manifest: bytes, media_type: str) -> Message:
        """Puts a manifest there under a tag or its digest, once all that it names is there.

        Returns: the headers of the answer.

        Raises:
            RegistryError: the registry is not reached or refuses.
        """
        url = f"{self._base()}/manifests/{reference}"
        return self._ask(url, method="PUT", body=manifest, headers={"Content-Type": media_type})[1]

    def delete_manifest(self, digest: str) -> None:
        """Removes a manifest, and with it every tag of it.

        Raises:
            RegistryError: the registry is not reached, or lets nobody delete.
        """
        self._ask(f"{self._base()}/manifests/{digest}", method="DELETE")

    def _base(self) -> str:
        local = re.fullmatch(r"(localhost|127\.0\.0\.\d+)(:\d+)?", self.host)  # as the Docker engine decides
        return f"{'http' if local else 'https'}://{self.host}/v2/{self.path}"

    def _ask(
        self,
        url: str,
        *,
        accept: str = "*/*",
        method: str = "GET",
        body: bytes | Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, Message]:
        def send() -> tuple[bytes, Message]:
            # an upload's place may be another host's, which has its own authorization in the address
            known = self._authorization if urlsplit(url).netloc == urlsplit(self._base()).netloc else None
            return request(url, accept=accept, authorization=known, method=method, body=body, headers=headers)

        try:
            try:
                return send()
            except HttpError as error:
                before = self._authorization
                if error.status != 401 or error.headers is None:
                    raise
                self._authorization = self._log_in(error.headers.get("WWW-Authenticate", ""))
                if self._authorization == before:
                    raise
                return send()
        except HttpError as error:
            raise _explain(self, error) from None

    def _log_in(self, challenge: str) -> str | None:
        known = read_login(self.host)
        found = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.lower().startswith("bearer") or urlsplit(found.get("realm", "")).scheme not in (
            "http",
            "https",
        ):
            return known
        asked = {"service": found.get("service", ""), "scope": found.get("scope", f"repository:{self.path}:pull")}
        body, _ = get(f"{found['realm']}?{urlencode(asked)}", accept="application/json", authorization=known)
        try:
            answer = json.loads(body)
            return f"Bearer {answer.get('token') or answer['access_token']}"
        except (ValueError, KeyError, TypeError):
            raise RegistryError(f"{self.name}: the registry's token service gives no token.") from None


def digest_of(content: bytes) -> str:
    """The digest of a blob or manifest.

    >>> digest_of(b"{}")
    'sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'
    """
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _check_digest(reference: str, body: bytes, name: str) -> None:
    if reference.startswith("sha256:") and digest_of(body) != reference:
        raise RegistryError(f"{name}@{reference}: the registry sent other bytes: {digest_of(body)}.")


def _read_object(body: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RegistryError(f"{what}: the registry's answer is no JSON object.")
    return found


def _explain(asked: Repository, error: HttpError) -> NightjarError:
    name = asked.name
    if error.status == 404:
        return AbsentError(f"{name}: {error}.", "mind the spelling")
    login = LOGIN_HINT
    if error.status in (401, 403) and read_login(asked.host) is not None:
        login = REFUSED_HINT.format(asked.host)
    hint = {401: login, 403: login, 405: "does this registry let anybody delete?", 0: REACH_HINT}
    said = ""
    with contextlib.suppress(ValueError, KeyError, TypeError):  # not every refusal is in the registry's own words
        reasons = json.loads(error.body)["errors"]
        said = ": " + "; ".join(f"{one['code']} {one.get('message', '')}".strip() for one in reasons)
    return RegistryError(f"{name}: {error}{said}.", hint.get(error.status), error.status)


def _is_passing(error: RegistryError) -> bool:
    return error.status is not None and (error.status in (0, 429) or error.status >= 500)
