"""Names of JAX that an error misses, and the release that removed them.

In: the message of a failed test, and the files of JAX in a package index. Out: the name, the last release that has it
and the first one without it. The source in its archives is parsed; nothing is installed or run, so no
requirement of another package hides a release. The answer counts only if both of its ends are found.

Source: jax:jax/_src/deprecations.py (`deprecation_getattr`: a name whose replacement is None has been removed).
"""

from __future__ import annotations

import io
import re
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from nightjar_ci.web.http import HttpError, get
from nightjar_ci.web.package_index import File, version_of

_MISSES = (
    re.compile(r"module '(?P<module>jax(?:\.\w+)*)' has no attribute '(?P<name>\w+)'"),
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>jax(?:\.\w+)*)'"),
    re.compile(r"No module named '(?P<module>jax(?:\.\w+)+)'(?P<name>)"),  # the name may live on without a module
    re.compile(
        r"AttributeError: (?P<module>jax(?:\.\w+)*)\.(?P<name>\w+) (?:is|was|has been) (?:deprecated|removed|deleted)"
    ),
)
# An entry of a table of deprecations without a replacement: "NAME": (message, None).
_GONE = rb"""["']NAME["']\s*:\s*\((?:(?!["']\w+["']\s*:|\}).)*?\bNone,?\s*\)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A name that JAX removed.

    Attributes:
        name: in full, such as `jax.lib.xla_bridge`.
    """

    name: str
    last: str
    release: str


def find_missed_name(message: str) -> tuple[str, str] | None:
    """The module of JAX and the name that an error misses in it; an empty name if it misses the module.

    >>> find_missed_name("ImportError: cannot import name 'xla_bridge' from 'jax.lib' (/site-packages/jax/lib)")
    ('jax.lib', 'xla_bridge')
    >>> find_missed_name("ModuleNotFoundError: No module named 'haiku'")
    """
    for pattern in _MISSES:
        if (match := pattern.search(message)) is not None:
            return match["module"], match["name"]
    return None


def find_missing_module(message: str) -> str | None:
    """The module that a test lacks because no package has it; None if it fails for another reason.

    >>> find_missing_module("ModuleNotFoundError: No module named 'ogb'")
    'ogb'
    """
    match = re.search(r"ModuleNotFoundError: No module named '(\w+)'", message)
    return match and match[1]


def find_removal(module: str, name: str, files: Iterable[File], version: str) -> Removal | None:
    """The release that removed a name, at or before a version; None if the archives do not show it."""
    archives: dict[Version, File] = {}
    for file in sorted(files, key=lambda file: file.name.endswith(".whl")):  # a wheel before a source distribution
        release = version_of("jax", file.name)
        if release is not None and not (release.is_prerelease or file.yanked) and release <= Version(version):
            archives[release] = file
    releases = sorted(archives)

    @cache
    def has(index: int) -> bool | None:
        try:
            return defines(_read_sources(archives[releases[index]], module, name), module, name)
        except (HttpError, OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error):
            return None

    missing = len(releases) - 1
    if missing < 0 or has(missing) is not False:
        return None
    step = 1
    while (present := max(0, missing - step)) < missing and has(present) is False:
        missing, step = present, 2 * step
    if has(present) is not True:
        return None
    while missing - present > 1:
        middle = (present + missing) // 2
        if (answer := has(middle)) is None:
            return None
        present, missing = (middle, missing) if answer else (present, middle)
    return Removal(name=f"{module}.{name}".rstrip("."), last=str(releases[present]), release=str(releases[missing]))


def _find_paths(module: str, name: str) -> tuple[str, ...]:
    path = module.replace(".", "/")
    return f"{path}/{name}.py", f"{path}/{name}/__init__.py", f"{path}.py", f"{path}/__init__.py"


def _read_sources(file: File, module: str, name: str) -> Mapping[str, bytes]:
    wanted = _find_paths(module, name)
    data, _ = get(file.url, accept="*/*")
    if file.name.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            return {path: wheel.read(path) for path in {*wanted} & {*wheel.namelist()}}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = ((member.name.partition("/")[2], archive.extractfile(member)) for member in archive)
        return {path: member.read() for path, member in members if path in wanted and member is not None}


def defines(sources: Mapping[str, bytes], module: str, name: str) -> bool | None:
    """Whether a module has a name; None if its source does not tell.

    A name that the code of a module mentions is there, unless the table of deprecations gives it no replacement.
    """
    *submodules, plain, package = _find_paths(module, name)
    if not sources.keys().isdisjoint(submodules):
        return True
    source = sources.get(plain, sources.get(package))
    if source is None or not name:
        return source is not None
    if re.search(_GONE.replace(b"NAME", name.encode()), source, re.DOTALL):
        return False
    try:
        tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return None
    if any(token.type == tokenize.NAME and token.string == name for token in tokens):
        return True
    if re.search(rb"^from \S+ import \*", source, re.MULTILINE):
        return None
    return False
