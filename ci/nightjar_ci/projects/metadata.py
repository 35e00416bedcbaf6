"""The metadata of a project: its name, requirements and build.

In: a folder. Out: a `Metadata`. Dynamic metadata (a `setup.py` that computes its requirements) is unknown here; uv
learns it when it builds the project.

Source: packaging.python.org, "Declaring project metadata" and "Dependency groups".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.environments.declared import read_declared
from nightjar_ci.environments.sources import get_list, get_table
from nightjar_ci.formats.documents import read_toml

_PURE_BACKENDS = ("hatchling", "flit", "setuptools", "poetry", "pdm", "uv_build")
_COMPILERS = ("pybind11", "nanobind", "cython", "numpy", "mypy", "cffi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of a project.

    Attributes:
        dependencies: canonical names of its requirements.
        extras: optional dependencies: extra to canonical names.
        groups: dependency groups: group to canonical names.
        is_compiled: whether building it may compile, so its folder cannot be imported directly.
        document: `pyproject.toml`.
    """

    name: str
    dependencies: frozenset[str]
    extras: Mapping[str, frozenset[str]]
    groups: Mapping[str, frozenset[str]]
    is_compiled: bool
    document: Mapping[str, Any]


def read_metadata(folder: Path) -> Metadata:
    """The metadata of a project; empty if there is none."""
    path = folder / "pyproject.toml"
    document = read_toml(path) if path.is_file() else {}
    project = read_declared(folder)
    extras = get_table(project, "optional-dependencies")
    groups = get_table(document, "dependency-groups")
    return Metadata(
        name=str(project.get("name") or folder.resolve().name),
        dependencies=frozenset(read_names(get_list(project, "dependencies"))),
        extras={name: frozenset(read_names(get_list(extras, name))) for name in extras},
        groups={name: frozenset(_read_group(groups, name, ())) for name in groups},
        is_compiled=_is_compiled(folder, get_table(document, "build-system")),
        document=document,
    )


def read_names(lines: Iterable[Any]) -> Iterator[str]:
    """The canonical names of the packages that requirement lines name; other lines are skipped."""
    for line in lines:
        if not isinstance(line, str):
            continue
        try:
            yield canonicalize_name(Requirement(re.sub(r"\s+#.*$", "", line.strip())).name)
        except InvalidRequirement:
            continue


def _read_group(groups: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Iterator[str]:
    if name in above:  # a circle
        return
    for entry in get_list(groups, name):
        if isinstance(entry, dict) and isinstance(included := entry.get("include-group"), str):
            yield from _read_group(groups, included, (*above, name))
        else:
            yield from read_names([entry])


def _is_compiled(folder: Path, build: Mapping[str, Any]) -> bool:
    backend = str(build.get("build-backend", "setuptools"))
    if not backend.startswith(_PURE_BACKENDS):
        return True
    if any(name.startswith(_COMPILERS) for name in read_names(get_list(build, "requires"))):
        return True
    setup = folder / "setup.py"
    return setup.is_file() and "ext_modules" in setup.read_text(encoding="utf-8", errors="replace")
