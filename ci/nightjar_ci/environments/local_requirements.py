"""Requirements that name a folder or a file of this machine: `./mylib`, `-e ./mylib[extra]`, `mylib @ file:///...`.

In: lines of requirements, as uv reads them; a relative path is relative to the working directory. Out: the packages
among them that are installed from this machine, with those that they themselves name in `[tool.uv.sources]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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

from nightjar_ci.environments.sources import read_project

_PERHAPS = re.compile(r"[/~@]|^\s*[-.]|\.(?:whl|gz|zip)\b")  # what a version of an index has not
_EDITABLE = re.compile(r"^(?:-e|--editable)[ =]\s*")
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_AFTER = re.compile(r"\s+#.*$|\s+--(?:hash|config-settings).*$|\s*\\$")
_BARE = re.compile(r"^(?P<path>[^\[;]+?)(?:\[(?P<extras>[^\]]*)\])?(?:\s*;\s*(?P<marker>.+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A package that is installed from this machine.

    Attributes:
        name: canonical.
        path: absolute.
        editable: whether the environment is to import the folder itself.
        requirement: the same in the standard's form, `name[extra] @ file:///...`; it cannot say editable.
    """

    name: str
    path: Path
    editable: bool
    requirement: Requirement

    def render(self) -> str:
        """A line that uv reads."""
        if not self.editable:
            return str(self.requirement)
        extras = f"[{','.join(sorted(self.requirement.extras))}]" if self.requirement.extras else ""
        marker = f" ; {self.requirement.marker}" if self.requirement.marker else ""
        return f"-e {self.path.as_uri()}{extras}{marker}"


def parse_local(line: str) -> Local | None:
    """The package of this machine that a line names, or None where it names another.

    Raises:
        ValueError: the path is not there, or names no package.

    >>> parse_local("jax==0.10.1"), parse_local("mylib @ git+https://host/mylib")
    (None, None)
    >>> parse_local("my_lib[fast] @ file:///src/mylib").path
    PosixPath('/src/mylib')
    """
    if not _PERHAPS.search(line):
        return None
    text = _AFTER.sub("", line.strip())
    editable = _EDITABLE.match(text) is not None
    text = _EDITABLE.sub("", text)
    if not text or text.startswith(("-", "#")):
        return None
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return _parse_bare(text, editable)
    if requirement.url is not None:
        return _make(requirement, _read_path(requirement.url), editable)
    return _parse_bare(text, editable) if editable or text.endswith(_ARCHIVES) else None


def find_locals(lines: Iterable[str]) -> dict[str, Local]:
    """The packages of this machine among requirements, and those that they bring along, by canonical name.

    Raises:
        ValueError: a path is not there, or names no package.
    """
    waiting = [local for line in lines if (local := parse_local(line)) is not None]
    named: dict[str, Local] = {}
    while waiting:
        local = waiting.pop(0)
        if local.name not in named:
            named[local.name] = local
            waiting += _find_own_sources(local.path)
    return named


def find_linked_names(lines: Iterable[str]) -> set[str]:
    """The packages of the wheels and archives in folders that `--find-links` names."""
    names = set()
    for line in lines:
        folder = re.match(r"(?:-f|--find-links)[ =]\s*(\S+)", line)
        for path in Path(folder[1]).glob("*") if folder else ():
            with suppress(ValueError):
                names.add(read_name(path))
    return names


def make_editable(lines: Iterable[str], editable: Mapping[str, Local]) -> list[str]:
    """The lines, with these packages editable: a resolution writes them down in a form that cannot say so."""
    changed = []
    for line in lines:
        local = parse_local(line) if " @ " in line else None
        changed.append(editable[local.name].render() if local is not None and local.name in editable else line)
    return changed


def read_name(path: Path) -> str:
    """The package that a folder, a wheel or a source archive holds.

    Raises:
        ValueError: it is not there, or does not say.
    """
    if path.is_dir():
        project = read_project(path).get("project")
        if isinstance(project, dict) and isinstance(name := project.get("name"), str):
            return canonicalize_name(name)
        raise ValueError(f"{path / 'pyproject.toml'} names no package: write NAME @ {path.as_uri()}")
    if not path.is_file():
        raise ValueError(f"{path} is not there; paths are relative to the working directory")
    try:
        return parse_wheel_filename(path.name)[0] if path.suffix == ".whl" else parse_sdist_filename(path.name)[0]
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise ValueError(f"{path}: {error}") from None


def _parse_bare(text: str, editable: bool) -> Local | None:
    bare = _BARE.match(text)
    if bare is None or not (editable or "/" in text or text.startswith((".", "~")) or text.endswith(_ARCHIVES)):
        return None
    path = _read_path(bare["path"].strip())
    if path is None:
        return None
    extras = f"[{bare['extras']}]" if bare["extras"] else ""
    marker = f" ; {bare['marker']}" if bare["marker"] else ""
    try:
        return _make(Requirement(f"{read_name(path)}{extras} @ {path.as_uri()}{marker}"), path, editable)
    except InvalidRequirement as error:
        raise ValueError(f"{text!r}: {str(error).splitlines()[0]}") from None


def _make(requirement: Requirement, path: Path | None, editable: bool) -> Local | None:
    if path is None:
        return None
    if not urlsplit(requirement.url).scheme:
        requirement.url = path.as_uri()
    return Local(name=canonicalize_name(requirement.name), path=path, editable=editable, requirement=requirement)


def _read_path(text: str) -> Path | None:
    """The absolute path that a URL or a path means; None where it is of another machine."""
    url = urlsplit(text)
    if url.scheme not in ("", "file"):
        return None
    path = Path(unquote(url.path)) if url.scheme else Path(text).expanduser()
    return Path.cwd().joinpath(path).resolve()


def _find_own_sources(folder: Path) -> Iterator[Local]:
    """The packages that a project takes from other folders (`[tool.uv.sources]`, and `name @ file:///...`)."""
    document = read_project(folder)
    sources = document.get("tool", {}).get("uv", {}).get("sources", {})
    for name, given in sources.items():
        for source in given if isinstance(given, list) else [given]:
            if isinstance(path := source.get("path"), str):
                place = (folder / path).resolve()
                requirement = Requirement(f"{name} @ {place.as_uri()}")
                editable = bool(source.get("editable"))
                if place.exists():
                    yield Local(name=canonicalize_name(name), path=place, editable=editable, requirement=requirement)
    project = document.get("project", {})
    for line in project.get("dependencies", []):
        if "@" in line and (local := parse_local(line)) is not None:
            yield local
