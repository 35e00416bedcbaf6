"""Which commit is the newest of each package that is taken from its own repository? Git is asked.

In: `docker/repositories.toml` and the names of packages. Out: a commit of each, and the requirements that put them in
the place of releases. Only the Python of the images takes commits: an older one keeps to releases, since development
has often left it behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_document
from nightjar_ci.images.process import ToolError, run_captured

FILE = "docker/repositories.toml"
SCHEMA = "nightjar.repositories/1"
# A server that sends less than 1 kB in 30 s is taken for one that does not answer.
_GIT = ("git", "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PackageRepository(_Strict):
    """Where a package is developed.

    Attributes:
        package: its name in the index.
        url: what `git clone` takes.
        branch: whose newest commit is taken; the repository's default where absent.
        subdirectory: where in the repository its `pyproject.toml` lies.
    """

    package: str
    url: str
    branch: str | None = None
    subdirectory: str | None = None


class Repositories(_Strict):
    """`docker/repositories.toml`."""

    schema_: Literal["nightjar.repositories/1"] = Field(alias="schema")
    repository: tuple[PackageRepository, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A package at a commit of 40 hexadecimal digits."""

    repository: PackageRepository
    id: str

    @property
    def requirement(self) -> str:
        """As pip and uv write it.

        >>> repository = PackageRepository(package="flax", url="https://git.example/flax")
        >>> Commit(repository=repository, id="0" * 40).requirement[:50]
        'flax @ git+https://git.example/flax@00000000000000'
        """
        inside = f"#subdirectory={self.repository.subdirectory}" if self.repository.subdirectory else ""
        return f"{self.repository.package} @ git+{self.repository.url}@{self.id}{inside}"

    def __str__(self) -> str:
        return f"{self.repository.package} at commit {self.id[:12]}"


def find_commits(checkout: Path, packages: Sequence[str] = ()) -> tuple[Commit, ...]:
    """The newest commits.

    Args:
        checkout: root of the checkout.
        packages: which; all of `docker/repositories.toml` where empty.

    Raises:
        InputError: a package has no repository there, or its repository has no such branch.
        ToolError: git is missing, or a repository is not reached.
    """
    known = {one.package: one for one in read_document(checkout / FILE, Repositories, SCHEMA).repository}
    for package in packages:
        if package not in known:
            raise InputError(
                f"{package!r} has no repository in {FILE}: expected one of {', '.join(known)}.",
                f"add it there, or ask for a version, such as {package}==1.0",
            )
    return tuple(_find_newest(known[package]) for package in packages or known)


def render_overrides(commits: Iterable[Commit], python: str) -> str:
    """The overrides with which uv takes commits in place of releases.

    Args:
        commits: one for each package.
        python: the oldest Python that takes them, such as `3.13`.
    """
    lines = []
    for commit in commits:
        lines.append(f"{commit.requirement} ; python_full_version >= '{python}'")
        lines.append(f"{commit.repository.package} ; python_full_version < '{python}'")
    return "".join(f"{line}\n" for line in lines)


def read_image_python(checkout: Path) -> str:
    """The Python of the images, of `docker/versions.json`."""
    pins = json.loads((checkout / "docker/versions.json").read_text(encoding="utf-8"))
    return str(pins["variable"]["DEFAULT_PYTHON"]["default"])


def _find_newest(repository: PackageRepository) -> Commit:
    ref = f"refs/heads/{repository.branch}" if repository.branch else "HEAD"
    try:
        listed = run_captured([*_GIT, "ls-remote", repository.url, ref], variables={"GIT_TERMINAL_PROMPT": "0"})
    except ToolError as error:
        hint = f"is the host reached? Another one: {FILE}, or `git config --global url.MIRROR.insteadOf HOST`"
        raise ToolError(f"{repository.package}: {error.message}", hint) from None
    if not listed.strip():
        raise InputError(f"{FILE}: {repository.package}: {repository.url} has no {ref}.", "correct `url` or `branch`")
    return Commit(repository=repository, id=listed.split()[0])
