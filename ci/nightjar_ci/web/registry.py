"""Client for one repository of a container registry: tags, digests, manifests and blobs, read and written over HTTP.

In: a repository such as `ghcr.io/nvidia/jax`. Out: its tags, digests, manifests and blobs. If the registry asks for a
token, the client gets one with the login that `docker login` saved, or anonymously. An upload is complete or absent:
the registry checks its digest.

Source: github.com/opencontainers/distribution-spec (spec.md) and distribution.github.io/distribution/spec/auth/token.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import pydantic_core

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.settings import read_settings
from nightjar_ci.web.http import HttpError, get, request
from nightjar_ci.web.manifest_shape import DIGEST, find_wrong_keys

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
LOGIN_HINT = "log in with `docker login`"
REFUSED_HINT = "the saved login is wrong or lacks this permission; log in again with `docker login {}`"
FAILED_HINT = "the registry itself failed: its log says why, most often a full disk; push again when it has room"
REACH_HINT = "check the registry's host and port, and that it runs"
_MAX_PAGES = 1000
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_TOKEN = re.compile(r"[!-~]+")
Response = TypeVar("Response")
_TRIES = 3
_WAIT_S = 1.0


class RegistryError(NightjarError):
    """A registry cannot be reached, refuses, or sends an invalid response: exit code 3.

    `status` is the response's: 0 if there was none, None if the response is invalid.
    """

    def __init__(self, message: str, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(message, hint)
        self.status = status


class AbsentError(InputError):
    """The registry has no such repository, tag, manifest or blob: exit code 2. `headers` are its response's."""

    headers: Message | None = None


@dataclass(slots=True)
class Repository:
    """One repository of a registry.

    Attributes:
        name: as `docker pull` takes it, without tag. Registries accept lower case only, so ghcr.io/NVIDIA/nightjar (as
            GitHub spells it) becomes ghcr.io/nvidia/nightjar.
    """

    name: str
    _authorization: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.name = re.sub(r"^(index\.)?docker\.io/", "", self.name.lower())  # how Docker spells its own

    @property
    def host(self) -> str:
        """The registry: the part before the first slash if it looks like a host, else Docker Hub."""
        first, slash, _ = self.name.partition("/")
        if slash and (re.search(r"[.:]", first) or first == "localhost"):
            return first
        return DOCKER_HUB

    @property
    def path(self) -> str:
        if self.host != DOCKER_HUB:
            return self.name.partition("/")[2]
        if "/" in self.name:
            return self.name
        return f"library/{self.name}"

    def tags(self) -> list[str]:
        url = f"{self._base()}/tags/list?n=1000"
        tags: list[str] = []
        for _ in range(_MAX_PAGES):
            body, headers = self._request(url, accept="application/json")
            page = _read_object(body, f"{self.name}: tags").get("tags", "missing")
            if page is None:  # as some registries write an empty list
                page = []
            if not isinstance(page, list) or not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in page):
                raise RegistryError(f"{self.name}: the registry did not send a list of tags.")
            tags += page
            following = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', headers.get("Link", ""))
            if following is None:
                break
            url = urljoin(url, following[1])
        return tags

    def read_date(self) -> str | None:
        """The registry's own date in UTC, `YYYY-MM-DD`; None if it sends none."""
        try:
            headers: Message | None = self._request(f"{self._base()}/tags/list?n=1", accept="application/json")[1]
        except AbsentError as error:
            headers = error.headers
        try:
            return parsedate_to_datetime((headers or Message()).get("Date", "")).astimezone(UTC).date().isoformat()
        except (ValueError, TypeError, AttributeError):
            return None

    def digest(self, tag: str) -> str:
        _, headers = self._request(f"{self._base()}/manifests/{tag}", accept=MANIFESTS, method="HEAD")
        digest = headers.get("Docker-Content-Digest", "")
        if not DIGEST.fullmatch(digest):
            raise RegistryError(f"{self.name}:{tag}: the registry sent no digest.")
        return str(digest)

    def find_digest(self, tag: str) -> str | None:
        """The digest of a tag; None if there is no such tag."""
        try:
            return self.digest(tag)
        except AbsentError:
            return None

    def read_manifest(self, reference: str) -> tuple[dict[str, Any], bytes]:
        body, _ = self._request(f"{self._base()}/manifests/{reference}", accept=MANIFESTS)
        _check_digest(reference, body, self.name)
        return _read_manifest(body, f"{self.name}:{reference}"), body

    def read_image(self, reference: str) -> tuple[dict[str, Any], bytes]:
        """The manifest of an image or artifact, which has a configuration and layers; raises like `read_manifest`."""
        manifest, body = self.read_manifest(reference)
        if "config" not in manifest or not manifest.get("layers"):
            raise RegistryError(f"{self.name}:{reference}: the registry sent no manifest of an image.")
        return manifest, body

    def read_blob(self, digest: str) -> bytes:
        body, _ = self._request(f"{self._base()}/blobs/{digest}")
        _check_digest(digest, body, self.name)
        return body

    def has_blob(self, digest: str) -> bool:
        try:
            self._request(f"{self._base()}/blobs/{digest}", method="HEAD")
        except AbsentError:
            return False
        return True

    def put_blob(self, digest: str, content: bytes | Path) -> bool:
        """Uploads a blob unless the repository has it.

        Returns: whether it was sent.
        """
        if self.has_blob(digest):
            return False

        def upload() -> None:
            _, headers = self._send(f"{self._base()}/blobs/uploads/", method="POST", body=b"")
            location = urljoin(f"{self._base()}/blobs/uploads/", headers.get("Location", ""))
            url = f"{location}{'&' if urlsplit(location).query else '?'}{urlencode({'digest': digest})}"
            self._send(url, method="PUT", body=content, headers={"Content-Type": "application/octet-stream"})

        _retry(upload)
        return True

    def read_referrers(self, digest: str) -> dict[str, Any]:
        """The registry's index of the artifacts that refer to a manifest (referrers API)."""
        body, _ = self._send(f"{self._base()}/referrers/{digest}", accept=INDEX_TYPE)  # at once: there is another way
        return _read_manifest(body, f"{self.name}: referrers of {digest}")

    def put_manifest(self, reference: str, manifest: bytes, media_type: str) -> Message:
        """Uploads a manifest under a tag or its digest; everything that it refers to must be uploaded before.

        Returns: the response headers.
        """
        url = f"{self._base()}/manifests/{reference}"
        return self._request(url, method="PUT", body=manifest, headers={"Content-Type": media_type})[1]

    def _base(self) -> str:
        local = re.fullmatch(r"(localhost|127\.0\.0\.\d+)(:\d+)?", self.host)  # as the Docker engine decides
        return f"{'http' if local else 'https'}://{self.host}/v2/{self.path}"

    def _request(self, url: str, **options: Any) -> tuple[bytes, Message]:
        return _retry(lambda: self._send(url, **options))

    def _send(
        self,
        url: str,
        *,
        accept: str = "*/*",
        method: str = "GET",
        body: bytes | Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, Message]:
        def send() -> tuple[bytes, Message]:
            login = self._authorization
            if urlsplit(url).netloc != urlsplit(self._base()).netloc:
                login = None  # an upload to another host, whose URL carries its own authorization
            return request(url, accept=accept, authorization=login, method=method, body=body, headers=headers)

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
        login = read_login(self.host)
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = fields.get("realm", "")
        if not challenge.lower().startswith("bearer") or urlsplit(realm).scheme not in ("http", "https"):
            return login
        query = {"service": fields.get("service", ""), "scope": fields.get("scope", f"repository:{self.path}:pull")}
        body, _ = get(f"{realm}?{urlencode(query)}", accept="application/json", authorization=login)
        answer = _read_object(body, f"{self.name}: token")
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise RegistryError(f"{self.name}: the registry's token service sent no token.")
        return f"Bearer {token}"


def split_reference(image: str) -> tuple[str, str]:
    """The repository of an image reference, and its digest or else its tag.

    >>> split_reference("ghcr.io/me/jax:new"), split_reference("localhost:5000/jax")
    (('ghcr.io/me/jax', 'new'), ('localhost:5000/jax', 'latest'))
    >>> split_reference("me/jax:new@sha256:0")
    ('me/jax', 'sha256:0')
    """
    named, at, digest = image.partition("@")
    folder, slash, last = named.rpartition("/")
    name, colon, tag = last.partition(":")
    if not colon:
        tag = "latest"
    if at:
        tag = digest
    return f"{folder}{slash}{name}", tag


def digest_of(content: bytes) -> str:
    """The digest of a blob or manifest.

    >>> digest_of(b"{}")
    'sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'
    """
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _check_digest(reference: str, body: bytes, name: str) -> None:
    if reference.startswith("sha256:") and digest_of(body) != reference:
        raise RegistryError(f"{name}@{reference}: the registry sent content with another digest: {digest_of(body)}.")


def _read_manifest(body: bytes, what: str) -> dict[str, Any]:
    """A manifest, an index or a list of referrers, whose keys have the types that the specification gives them."""
    document = {key: value for key, value in _read_object(body, what).items() if value is not None}
    if wrong := find_wrong_keys(document):
        raise RegistryError(f"{what}: the registry sent a manifest whose {' and '.join(wrong)} cannot be read.")
    return document


def _read_object(body: bytes, what: str) -> dict[str, Any]:
    try:
        document = pydantic_core.from_json(body)  # which also refuses too deep nesting
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RegistryError(f"{what}: the registry did not send a JSON object.")
    return document


def _explain(repository: Repository, error: HttpError) -> NightjarError:
    name = repository.name
    if error.status == 404:
        absent = AbsentError(f"{name}: {error}.", "check the spelling")
        absent.headers = error.headers
        return absent
    login = LOGIN_HINT
    if error.status in (401, 403) and read_login(repository.host) is not None:
        login = REFUSED_HINT.format(repository.host)
    hint = {401: login, 403: login, 405: "enable deletion in the registry's configuration", 0: REACH_HINT}
    details = ""
    with contextlib.suppress(
        ValueError, KeyError, TypeError, AttributeError
    ):  # a proxy may send something else than registry errors
        reasons = pydantic_core.from_json(error.body)["errors"]
        details = ": " + "; ".join(f"{reason['code']} {reason.get('message', '')}".strip() for reason in reasons)
    advice = FAILED_HINT if error.status >= 500 else hint.get(error.status)
    return RegistryError(f"{name}: {error}{details}.", advice, error.status)


def _retry(send: Callable[[], Response]) -> Response:
    """What `send` returns; tried again after an error that may pass."""
    for attempt in range(_TRIES - 1):
        try:
            return send()
        except RegistryError as error:
            if error.status is None or not (error.status in (0, 429) or error.status >= 500):
                raise
            time.sleep(_WAIT_S * 2**attempt)
    return send()


DOCKER_HUB = "registry-1.docker.io"
_NAMES = {DOCKER_HUB: ("https://index.docker.io/v1/", DOCKER_HUB)}  # of a registry in docker's file
_HELPER_TIMEOUT_S = 30


def read_login(host: str) -> str | None:
    """The saved login of a registry as an `Authorization` header; None if there is none."""
    try:
        config = json.loads((read_settings().docker_config_dir / "config.json").read_text(encoding="utf-8"))
        for name in _NAMES.get(host, (host, f"https://{host}")):
            if entry := config.get("auths", {}).get(name, {}).get("auth"):
                return f"Basic {entry}"
            helper = config.get("credHelpers", {}).get(name) or config.get("credsStore")
            if helper and (authorization := _run_helper(helper, name)):
                return authorization
    except (OSError, ValueError, TypeError, AttributeError):
        pass  # there is no file, or docker could not read it either
    return None


def _run_helper(helper: str, name: str) -> str | None:
    program = f"docker-credential-{Path(helper).name}"
    try:
        done = subprocess.run(
            [program, "get"], input=name, capture_output=True, text=True, check=True, timeout=_HELPER_TIMEOUT_S
        )
        saved = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    user, secret = saved.get("Username"), saved.get("Secret")
    if not user or not secret:
        return None
    return f"Basic {base64.b64encode(f'{user}:{secret}'.encode()).decode('ascii')}"
