"""Requirements that name a folder or a file of this machine: `./mylib`, `-e ./mylib[extra]`, `mylib @ file:///...`.

In: requirement lines, as uv reads them; paths are relative to the working directory. Out: the packages among them that
are installed from this machine. uv itself reads the ones that these name in `[tool.uv.sources]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from nightjar_ci.environments.declared import read_declared

_EDITABLE = re.compile(r"^(?:-e|--editable)[ =]\s*")
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_AFTER = re.compile(r"\s+#.*$|\s+--(?:hash|config-settings).*$|\s*\\$")
_BARE = re.compile(r"^(?P<path>[^\[;]+?)(?P<extras>\[[^\]]*\])?(?P<marker>\s*;.+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A package that is installed from this machine.

    Attributes:
        editable: whether the environment is to import the folder itself.
        requirement: the same in the standard's form, `name[extra] @ file:///...`, which cannot express editable.
    """

    name: str
    path: Path
    editable: bool
    requirement: Requirement

    def render(self) -> str:
        if self.editable:
            return f"-e {self.requirement}"
        return str(self.requirement)


def parse_local(line: str) -> Local | None:
    """The local package that a line names, or None if it names another.

    >>> parse_local("jax==0.10.1"), parse_local("mylib @ git+https://host/mylib")
    (None, None)
    >>> parse_local("my_lib[fast] @ file:///src/mylib").path
    PosixPath('/src/mylib')
    """
    text = _AFTER.sub("", line.strip())
    editable = _EDITABLE.match(text) is not None
    text = _EDITABLE.sub("", text)
    if not text or text.startswith(("-", "#")):
        return None
    try:
        requirement: Requirement | None = Requirement(text)
    except InvalidRequirement:
        requirement = None
    if requirement is None or (requirement.url is None and (editable or text.endswith(_ARCHIVES))):
        requirement = _parse_bare(text, editable)
    if requirement is None or requirement.url is None or (path := _read_path(requirement.url)) is None:
        return None
    if not urlsplit(requirement.url).scheme:
        requirement.url = path.as_uri()
    return Local(name=canonicalize_name(requirement.name), path=path, editable=editable, requirement=requirement)


def find_locals(lines: Iterable[str]) -> dict[str, Local]:
    """The local packages among requirements, by canonical name; a resolver's output has their local dependencies."""
    return {local.name: local for line in lines if (local := parse_local(line)) is not None}


def find_linked_names(lines: Iterable[str]) -> set[str]:
    """The packages of the wheels and archives in `--find-links` folders."""
    names = set()
    options = (re.match(r"(?:-f|--find-links)[ =]\s*(\S+)", line) for line in lines)
    for folder in (option[1] for option in options if option):
        for path in Path(folder).glob("*"):
            with suppress(ValueError):
                names.add(read_name(path))
    return names


def make_editable(lines: Iterable[str], chosen: Mapping[str, Local]) -> list[str]:
    """The lines with the packages editable that were chosen so; a resolver's output cannot express that."""

    def change(line: str) -> str:
        if " @ " in line and (local := parse_local(line)) is not None and local.name in chosen:
            return replace(local, editable=chosen[local.name].editable).render()
        return line

    return list(map(change, lines))


def read_name(path: Path) -> str:
    """The name of the package in a folder, a wheel or a source archive."""
    if path.is_dir():
        name = read_declared(path).get("name")
        if isinstance(name, str):
            return canonicalize_name(name)
        raise ValueError(
            f"{path} does not say its name in pyproject.toml, setup.cfg or setup.py: write NAME @ {path.as_uri()}"
        )
    if not path.is_file():
        raise ValueError(f"{path} does not exist; paths are relative to the working directory")
    try:
        if path.suffix == ".whl":
            return parse_wheel_filename(path.name)[0]
        return parse_sdist_filename(path.name)[0]
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise ValueError(f"{path}: {error}") from None


def _parse_bare(text: str, editable: bool) -> Requirement | None:
    bare = _BARE.match(text)
    if bare is None or not (editable or "/" in text or text.startswith((".", "~")) or text.endswith(_ARCHIVES)):
        return None
    path = _read_path(bare["path"].strip())
    if path is None:
        return None
    try:
        return Requirement(f"{read_name(path)}{bare['extras'] or ''} @ {path.as_uri()} {bare['marker'] or ''}")
    except InvalidRequirement as error:
        raise ValueError(f"{text!r}: {str(error).splitlines()[0]}") from None


def _read_path(text: str) -> Path | None:
    """The absolute path of a `file:` URL or a path; None for other URLs."""
    url = urlsplit(text)
    if url.scheme == "file":
        return Path(unquote(url.path)).resolve()
    if url.scheme:
        return None
    try:
        path = Path(text).expanduser().resolve()
        path.exists()  # fails for a name that is too long
    except (OSError, RuntimeError) as error:  # the home folder of nobody, a loop of links, a name that is too long
        raise ValueError(f"{text!r} is not a path: {error}") from None
    return path
