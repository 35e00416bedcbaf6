"""The servers to which commands write: a registry of images and PostgreSQL, each world's copy apart from the others.

In: a folder for the server. Out: variables that name a fresh copy of what stands in it, and afterwards what is there,
read from the server's own files or by its own client, not by the code under test.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg import sql

from tests.ci.postgres import find_programs, running_postgres
from tests.ci.registries import run_registry

REPOSITORY = "NIGHTJAR_FAULTS_REPOSITORY"
DATABASE = "NIGHTJAR_DATABASE_URL"
_BASE = "base"
_numbers = itertools.count()


class Service(Protocol):
    def copy(self) -> str:
        """The name of a new copy of the base, which is empty until it is filled; the last copy of this process goes."""

    def variables(self, name: str = _BASE) -> Mapping[str, str]:
        """The environment of a command that works on a copy, or on the base itself."""

    def rows(self, name: str) -> Counter[str]:
        """What is in a copy, a line for each fact."""

    def find_torn(self, name: str) -> Iterator[str]:
        """What a copy has only in part."""


def _name_copy() -> tuple[str, str]:
    number = next(_numbers)
    return f"copy{os.getpid()}n{number - 1}", f"copy{os.getpid()}n{number}"


@dataclass(frozen=True, slots=True)
class RegistryService:
    """A registry of images; a copy is a repository."""

    host: str
    data: Path

    @property
    def _repositories(self) -> Path:
        return self.data / "docker" / "registry" / "v2" / "repositories"

    def copy(self) -> str:
        """A copy of the repository; the blobs are shared, but not each repository's list of them."""
        last, name = _name_copy()
        shutil.rmtree(self._repositories / last, ignore_errors=True)
        if (self._repositories / _BASE).is_dir():
            shutil.copytree(self._repositories / _BASE, self._repositories / name)
        return name

    def variables(self, name: str = _BASE) -> Mapping[str, str]:
        return {REPOSITORY: f"{self.host}/{name}"}

    def rows(self, name: str) -> Counter[str]:
        """Tags and their digests; of what is attached to a manifest, the kinds."""
        tags = {tag: self._read(digest) for tag, digest in self._tags(name)}
        named = [f"{tag} {hashlib.sha256(data).hexdigest()}" for tag, data in tags.items() if "sha256-" not in tag]
        attached = [
            f"{tag} {kind['artifactType']}"
            for tag, data in tags.items()
            if "sha256-" in tag
            for kind in json.loads(data)["manifests"]
        ]
        return Counter([*named, *attached])

    def find_torn(self, name: str) -> Iterator[str]:
        """Tags whose manifest, or a blob of it, is missing or is another one."""
        for tag, digest in self._tags(name):
            waiting = [digest]
            while waiting:
                digest = waiting.pop()
                data = self._read(digest)
                if hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:"):
                    yield f"{tag} lacks {digest}"
                elif data.startswith(b"{"):
                    document = json.loads(data)
                    parts = [*document.get("manifests", []), *document.get("layers", []), document.get("config")]
                    waiting += [part["digest"] for part in parts if isinstance(part, dict) and "digest" in part]

    def _tags(self, name: str) -> Iterator[tuple[str, str]]:
        """The tags of a repository and of those below it, with the path of theirs, and their digests."""
        for link in sorted((self._repositories / name).glob("**/_manifests/tags/*/current/link")):
            path = link.parents[4].relative_to(self._repositories / name)
            yield f"{path}:{link.parents[1].name}", link.read_text()

    def _read(self, digest: str) -> bytes:
        value = digest.removeprefix("sha256:")
        path = self.data / "docker" / "registry" / "v2" / "blobs" / "sha256" / value[:2] / value / "data"
        return path.read_bytes() if path.is_file() else b""


@dataclass(frozen=True, slots=True)
class PostgresService:
    """A PostgreSQL server; a copy is a database."""

    url: str

    def __post_init__(self) -> None:
        self._execute("CREATE DATABASE {}", _BASE)

    def copy(self) -> str:
        last, name = _name_copy()
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", last)
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, _BASE)
        return name

    def variables(self, name: str = _BASE) -> Mapping[str, str]:
        return {DATABASE: self._address(name)}

    def rows(self, name: str) -> Counter[str]:
        lines: Counter[str] = Counter()
        with psycopg.connect(self._address(name)) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for (table,) in tables.fetchall():
                rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))).fetchall()
                lines.update(f"{table}({','.join(map(repr, row))})" for row in rows)
        return lines

    def find_torn(self, name: str) -> Iterator[str]:
        """Nothing: what a transaction wrote in part is a row too few, which `rows` shows."""
        yield from ()

    def _address(self, name: str) -> str:
        return self.url.replace("/postgres?", f"/{name}?")

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def serve_registry(folder: Path) -> Iterator[Service]:
    with run_registry(folder) as registry:
        yield RegistryService(registry.host, folder / "data")


@contextmanager
def serve_postgres(_: Path) -> Iterator[Service]:
    with running_postgres(find_programs()) as url:
        yield PostgresService(url)


SERVICES: Mapping[str, Callable[[Path], AbstractContextManager[Service]]] = {
    "registry": serve_registry,
    "postgres": serve_postgres,
}
