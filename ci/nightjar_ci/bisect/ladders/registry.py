"""Which tags does a repository of images have, and which image is behind each? Asked of its registry.

In: a repository such as `ghcr.io/nvidia/jax`. Out: tags and digests. A registry that wants a token gets one, with the
user and password that `docker login` has left, or as nobody.

Source: github.com/opencontainers/distribution-spec (spec.md) and distribution.github.io/distribution/spec/auth/token.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

from nightjar_ci.bisect.ladders.http import HttpError, get, request
from nightjar_ci.errors import InputError, NightjarError

MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)
DOCKER_HUB = "registry-1.docker.io"
_MOST_PAGES = 1000


@dataclass(slots=True)
class Repository:
    """One repository of a registry.

    Attributes:
        name: as `docker pull` takes it, without tag.
    """

    name: str
    _authorization: str | None = field(default=None, init=False, repr=False)

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
            InputError: there is no such repository.
            NightjarError: the registry is not reached or refuses.
        """
        url: str | None = f"{self._base()}/tags/list?n=1000"
        found: list[str] = []
        for _ in range(_MOST_PAGES):
            if url is None:
                break
            body, headers = self._ask(url, "application/json")
            try:
                found += json.loads(body)["tags"] or []
            except (ValueError, KeyError, TypeError):
                raise NightjarError(f"the registry's answer about {self.name} is no list of tags.") from None
            following = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', headers.get("Link", ""))
            url = urljoin(url, following[1]) if following else None
        return found

    def digest(self, tag: str) -> str:
        """The digest of the image behind a tag.

        Raises:
            InputError: there is no such tag.
            NightjarError: the registry is not reached, or names no digest.
        """
        _, headers = self._ask(f"{self._base()}/manifests/{tag}", MANIFESTS, "HEAD")
        digest = headers.get("Docker-Content-Digest", "")
        if not re.fullmatch(r"[a-z0-9+._-]+:[0-9a-fA-F]{32,}", digest):
            raise NightjarError(f"the registry names no digest of {self.name}:{tag}.")
        return str(digest)

    def _base(self) -> str:
        local = re.fullmatch(r"(localhost|127\.0\.0\.\d+)(:\d+)?", self.host)  # as the Docker engine decides
        return f"{'http' if local else 'https'}://{self.host}/v2/{self.path}"

    def _ask(self, url: str, accept: str, method: str = "GET") -> tuple[bytes, Message]:
        try:
            try:
                return request(url, accept=accept, authorization=self._authorization, method=method)
            except HttpError as error:
                if error.status != 401 or self._authorization is not None or error.headers is None:
                    raise
                self._authorization = self._log_in(error.headers.get("WWW-Authenticate", ""))
                return request(url, accept=accept, authorization=self._authorization, method=method)
        except HttpError as error:
            if error.status == 404:
                raise InputError(f"{self.name}: {error}.", "mind the spelling") from None
            hint = "`docker login` leaves a password that is used here" if error.status in (401, 403) else None
            raise NightjarError(f"{self.name}: {error}.", hint) from None

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
            raise NightjarError(f"{self.name}: the registry's token service gives no token.") from None


def read_login(host: str) -> str | None:
    """What `docker login` has left for a registry, as an `Authorization` header; None where there is nothing."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        known = json.loads((folder / "config.json").read_text(encoding="utf-8"))["auths"]
        names = ("https://index.docker.io/v1/", host) if host == DOCKER_HUB else (host, f"https://{host}")
        return next((f"Basic {known[name]['auth']}" for name in names if known.get(name, {}).get("auth")), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
