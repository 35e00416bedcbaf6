"""The source of a package, for tests that its wheel does not hold.

In: `flax` (the version that is installed in an environment), `flax==0.12.8`, or `jax @ git+https://github.com/jax-ml/jax`
for its repository at the tag of that version, for tests that are in no archive of the package index. Out: the folder of
its unpacked source distribution, or of a checkout of that one commit without history. It is kept under its name and
version: the tag of a release does not move, so no network is needed again. The archive is checked against the digest of
the package index, and unpacked as untrusted: no links out of it, no devices.

Source: packaging.python.org/en/latest/specifications/source-distribution-format; PEP 706 (`data` filter).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from nightjar_ci.environments.git_tree import run_git
from nightjar_ci.environments.installed import find_version
from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.environments.run_uv import find_index
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.git import git_command
from nightjar_ci.untrusted.inheritance import inherit_for_fetching
from nightjar_ci.web.http import HttpError, get, hide_passwords
from nightjar_ci.web.package_index import File, read_files, version_of

MOST_BYTES = 2 * 2**30  # unpacked; JAX's own has 60 MB
MOST_FILES = 100_000
# How projects name the tag of a release, tried in this order.
TAGS = ("v{version}", "{name}-v{version}", "{version}", "{name}-{version}", "release-{version}")
_ADDRESS = re.compile(
    r"git\+(?P<address>(?:https|http|ssh|file)://[^@\s]*(?:@[^@/\s]+/[^@\s]*)?)(?:@(?P<revision>\S+))?"
)


def parse_address(url: str) -> tuple[str, str | None]:
    """The address of a repository, and the revision, if named.

    >>> parse_address("git+https://github.com/jax-ml/jax@jax-v0.10.2")
    ('https://github.com/jax-ml/jax', 'jax-v0.10.2')
    >>> parse_address("git+ssh://git@github.com/jax-ml/jax")
    ('ssh://git@github.com/jax-ml/jax', None)
    """
    match = _ADDRESS.fullmatch(url)
    if match is None or (match["revision"] or "").startswith("-"):
        raise ValueError(f"{url!r} is not a repository: expected git+https://HOST/PATH, perhaps with @REVISION")
    return match["address"], match["revision"]


def parse_source(text: str) -> Requirement:
    """The package of `source`, and its version, if given.

    >>> parse_source("flax==0.12.8").name
    'flax'
    """
    expected = "expected NAME, NAME==VERSION or NAME @ git+https://HOST/PATH"
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is not a package: {expected}") from None
    if requirement.url:
        parse_address(requirement.url)
    versions = [specifier.operator + specifier.version[-1] for specifier in requirement.specifier]
    is_one_version = not versions or (len(versions) == 1 and re.fullmatch("==[^*]", versions[0]))
    if not is_one_version or requirement.extras or requirement.marker:
        raise ValueError(f"{text!r} is not one version of a package: {expected}")
    return requirement


def make_source(text: str, environment: PreparedEnvironment, settings: Settings) -> Path:
    """The unpacked source distribution or the checkout, fetched unless it exists already."""
    requirement = parse_source(text)
    name, sources = canonicalize_name(requirement.name), settings.cache_dir.absolute() / "sources"
    if requirement.url is not None:
        _, revision = parse_address(requirement.url)
        released = _find_version(requirement, environment) if revision is None else None
        return make_checkout(name, released, requirement.url, sources)
    version = _find_version(requirement, environment)
    folder = sources / f"{name}-{version}"
    if folder.is_dir():
        return folder
    try:
        files = read_files(name, settings.index_url or find_index())
    except InputError as error:
        raise EnvironmentFailedError(f"source {text!r}: {error.message}", error.hint) from None
    archive = _choose(name, version, files)
    try:
        data, _ = get(archive.url, accept="*/*")
    except HttpError as error:
        raise EnvironmentFailedError(f"source {text!r}: {error}.") from None
    digest = hashlib.sha256(data).hexdigest()
    if archive.sha256 is not None and digest != archive.sha256:
        raise EnvironmentFailedError(f"source {text!r}: {archive.name} has the digest {digest}, not {archive.sha256}.")
    try:
        _unpack(data, folder)
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        raise EnvironmentFailedError(f"source {text!r}: {archive.name} cannot be unpacked: {error}.") from None
    return folder


def _find_version(requirement: Requirement, environment: PreparedEnvironment) -> str:
    if requirement.specifier:
        return next(iter(requirement.specifier)).version
    path = () if environment.interpreter is None else environment.interpreter.path
    installed = find_version(requirement.name, path)
    if installed is None:
        hint = f"name the version: source = '{requirement.name}==VERSION'"
        raise EnvironmentFailedError(f"source: {requirement.name} is not installed in {environment.name}.", hint)
    return installed


def _choose(name: str, version: str, files: Sequence[File]) -> File:
    for file in files:
        if file.name.endswith(".tar.gz") and version_of(name, file.name) == Version(version):
            return file
    raise EnvironmentFailedError(
        f"the package index has no source distribution of {name} {version}.",
        f"where it has no tests, name the repository: source = '{name} @ git+https://HOST/PATH'",
    )


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Extracts a member that stays in the folder; of links none where Python has no filter (before 3.11.4)."""
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, folder, filter="data")
        return
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise ValueError(f"{member.name} is a link, or outside of the archive's folder")
    archive.extract(member, folder)


def _unpack(data: bytes, folder: Path) -> None:
    """Unpacks the only folder of an archive next to `folder`, and moves it there: it is complete or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            files = size = 0
            for member in archive:
                files, size = files + 1, size + member.size
                if size > MOST_BYTES or files > MOST_FILES:
                    raise ValueError(f"it holds more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")
                _extract(archive, member, temporary)
        roots = [path for path in Path(temporary).iterdir() if path.is_dir()]
        if len(roots) != 1:
            raise ValueError(f"it holds {len(roots)} folders, expected one")
        _keep(roots[0], folder)


def _keep(tree: Path, folder: Path) -> None:
    """Moves a complete tree to its place, unless another process was quicker."""
    try:
        tree.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(tree)


def make_checkout(name: str, version: str | None, url: str, cache: Path) -> Path:
    """The checkout of a release's tag, or of the revision that the address names; made unless it exists already.

    Args:
        version: of the release; None if the address names a revision.
    """
    address, revision = parse_address(url)
    origin = hashlib.sha256(address.encode()).hexdigest()[:8]
    folder = cache / f"{name}-{version}-git-{origin}"
    if version is not None and folder.is_dir():
        return folder
    commit, reference = _find_commit(name, version, address, revision)
    if version is None:
        folder = cache / f"{name}-{commit[:16]}-git-{origin}"
        if folder.is_dir():
            return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        tree = Path(temporary, "tree")
        tree.mkdir()
        _git(tree, "init", "--quiet")
        _git(tree, "fetch", "--quiet", "--depth=1", "--no-tags", "--", address, reference)
        _git(tree, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        _keep(tree, folder)
    return folder


def _find_commit(name: str, version: str | None, address: str, revision: str | None) -> tuple[str, str]:
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision, revision
    lines = _git(Path.cwd(), "ls-remote", "--", address).splitlines()
    commits = {reference: commit for commit, _, reference in (line.partition("\t") for line in lines)}
    if revision is None:
        wanted = [f"refs/tags/{tag.format(name=name, version=version)}" for tag in TAGS]
    else:
        wanted = [f"refs/tags/{revision}", f"refs/heads/{revision}", revision]
    for reference in wanted:
        if reference in commits:
            return commits.get(f"{reference}^{{}}", commits[reference]), reference
    tried = ", ".join(reference.removeprefix("refs/tags/") for reference in wanted)
    raise EnvironmentFailedError(
        f"source of {name}: {hide_passwords(address)} has none of {tried}.",
        f"name a tag, a branch or a full commit: source = '{name} @ git+ADDRESS@REVISION'",
    )


def _git(folder: Path, *arguments: str) -> str:
    # Git would wait for a password that nobody types.
    environ = {**inherit_for_fetching(os.environ), "GIT_TERMINAL_PROMPT": "0"}
    return run_git(git_command(folder, *arguments), f"`git {hide_passwords(' '.join(arguments))}`", environ)
