"""The newest commits of packages that nightly images take from their own repositories.

In: `docker/repositories.toml` and package names. Out: a commit of each, and the requirements that replace releases with
them. Only the Python of the images gets commits: older Pythons keep the releases, since the development branches have
often dropped them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.tools import ToolError, run_captured

FILE = "docker/repositories.toml"
# git gives up on a server that sends less than 1 kB/s for 30 s
_GIT = ("git", "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30")


class PackageRepository(StrictModel):
    """The git repository of a package.

    Attributes:
        url: as `git clone` takes it.
        branch: the branch whose newest commit is used; default: the repository's default branch.
        subdirectory: the folder of its `pyproject.toml` in the repository.
    """

    package: str
    url: str
    branch: str | None = None
    subdirectory: str | None = None


class Repositories(StrictModel):
    """`docker/repositories.toml`."""

    repository: tuple[PackageRepository, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A package at a commit of 40 hexadecimal digits."""

    repository: PackageRepository
    id: str

    @property
    def requirement(self) -> str:
        """The requirement of pip and uv.

        >>> repository = PackageRepository(package="flax", url="https://git.example/flax")
        >>> Commit(repository=repository, id="0" * 40).requirement[:50]
        'flax @ git+https://git.example/flax@00000000000000'
        """
        fragment = ""
        if self.repository.subdirectory:
            fragment = f"#subdirectory={self.repository.subdirectory}"
        return f"{self.repository.package} @ git+{self.repository.url}@{self.id}{fragment}"

    def __str__(self) -> str:
        return f"{self.repository.package} at commit {self.id[:12]}"


def find_commits(checkout: Path, packages: Sequence[str] = ()) -> tuple[Commit, ...]:
    """The newest commits.

    Args:
        packages: names; empty: all of `docker/repositories.toml`.
    """
    document = read_document(checkout / FILE, Repositories)
    repositories = {repository.package: repository for repository in document.repository}
    for package in packages:
        if package not in repositories:
            raise InputError(
                f"{package!r} has no repository in {FILE}: expected one of {', '.join(repositories)}.",
                f"add it there, or request a version, such as {package}==1.0",
            )
    return tuple(_find_newest(repositories[package]) for package in packages or repositories)


def render_overrides(commits: Iterable[Commit], python: str) -> str:
    """The overrides that make uv use commits instead of releases.

    Args:
        python: the oldest Python that takes them, such as `3.13`.
    """
    lines = []
    for commit in commits:
        lines.append(f"{commit.requirement} ; python_full_version >= '{python}'")
        lines.append(f"{commit.repository.package} ; python_full_version < '{python}'")
    return "".join(f"{line}\n" for line in lines)


def read_image_python(checkout: Path) -> str:
    pins = json.loads((checkout / "docker/versions.json").read_text(encoding="utf-8"))
    return str(pins["variable"]["DEFAULT_PYTHON"]["default"])


def _find_newest(repository: PackageRepository) -> Commit:
    ref = f"refs/heads/{repository.branch}" if repository.branch else "HEAD"
    try:
        listed = run_captured([*_GIT, "ls-remote", repository.url, ref], variables={"GIT_TERMINAL_PROMPT": "0"})
    except ToolError as error:
        hint = f"check the network; to use a mirror, edit {FILE} or `git config --global url.MIRROR.insteadOf HOST`"
        raise ToolError(f"{repository.package}: {error.message}", hint) from None
    if not listed.strip():
        raise InputError(f"{FILE}: {repository.package}: {repository.url} has no {ref}.", "correct `url` or `branch`")
    return Commit(repository=repository, id=listed.split()[0])
