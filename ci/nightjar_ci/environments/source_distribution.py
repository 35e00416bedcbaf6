"""The source of a package, for tests that its wheel does not hold.

In: `flax` (the version that is installed in an environment), `flax==0.12.8`, or `jax @ git+https://github.com/jax-ml/jax`
for its repository at the tag of that version. Out: the folder of its unpacked source distribution, or of the checkout,
kept under its name and version. The archive is checked against the digest of the package index, and is
unpacked as untrusted: no links out of it, no devices, limited size.

Source: packaging.python.org/en/latest/specifications/source-distribution-format; PEP 706 (`data` filter).
"""

from __future__ import annotations

import hashlib
import io
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

from nightjar_ci.environments.installed import find_version
from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.environments.source_checkout import make_checkout, parse_address
from nightjar_ci.environments.uv import find_index
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.settings import Settings
from nightjar_ci.web.http import HttpError, get
from nightjar_ci.web.package_index import File, read_files, version_of

MOST_BYTES = 2 * 2**30  # unpacked; JAX's own has 60 MB
MOST_FILES = 100_000


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
        try:
            roots[0].rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was quicker
                raise
            shutil.rmtree(roots[0])
