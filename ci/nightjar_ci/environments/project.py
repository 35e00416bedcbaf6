"""Environments of a project alone: `project:.[test],--group dev,-r requirements.txt,jax`.

In: the project's folder, its extras, its dependency groups, files of requirements, and further requirements. Out: a
virtual environment with the project and the newest versions that fit, and nothing of the current environment but its
Python. The versions are resolved each time; their list and the contents of the folder name the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.declared import read_declared, read_required_python
from nightjar_ci.environments.nightly_days import complete_day, name_days
from nightjar_ci.environments.sources import get_table, read_project
from nightjar_ci.environments.uv import compile_lines, make_pinned, parse_requirement, split_requirements
from nightjar_ci.errors import EnvironmentFailedError

_FOLDER = re.compile(r"(?P<path>[^\[\]]+?)(?P<extras>\[[\w.,\s-]+\])?")
_GROUP = re.compile(r"--group[ =]\s*(?P<name>[\w.-]+)")
_FILE = re.compile(r"(?:-r|--requirement)[ =]?\s*(?P<path>.+)")
_BUILDS = ("setup.py", "setup.cfg")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectEnvironment:
    """The contents of a project's environment.

    Attributes:
        extras: with their brackets, `[test,io]`; empty if there are none.
    """

    folder: Path
    extras: str = ""
    groups: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    requirements: tuple[str, ...] = ()

    def render_inputs(self) -> list[str]:
        """The lines that uv resolves; of a folder that is not a package, what it depends on."""
        lines = [f"-r {path.absolute()}" for path in self.files]
        if is_package(self.folder):
            lines.insert(0, f"{self.folder.absolute()}{self.extras}")
        elif not self.is_listed:
            lines += read_declared(self.folder).get("dependencies", ())
        return lines + complete_day(self.requirements)

    def render_options(self) -> list[str]:
        """The options for uv: the groups and, of a project that is not a package, its file and extras."""
        path = self.folder.absolute() / "pyproject.toml"
        options = [f"--group={path}:{group}" for group in self.groups]
        if self.is_listed:
            options += [*self.render_extras(), str(path)]
        return options

    @property
    def is_listed(self) -> bool:
        """Whether uv reads what the project depends on from its `pyproject.toml`, and nothing is installed from it."""
        return not is_package(self.folder) and "project" in read_project(self.folder)

    def render_extras(self) -> list[str]:
        return [f"--extra={name}" for name in re.findall(r"[\w.-]+", self.extras)]


def is_project(environment: str) -> bool:
    return environment.startswith("project:")


def parse_project(text: str) -> ProjectEnvironment:
    """The environment that is named after `project:`.

    >>> parse_project(".[test,io],--group dev,-r ci/tests.txt,jax<0.10,>=0.9").requirements
    ('jax<0.10,>=0.9',)
    """
    first, *others = split_requirements(text)
    folder = _FOLDER.fullmatch(first)
    if folder is None:
        raise ValueError(f"{first!r} is not a folder: expected for example project:.[test]")
    groups, files, requirements = [], [], []
    for part in others:
        if (group := _GROUP.fullmatch(part)) is not None:
            groups.append(group["name"])
        elif (file := _FILE.fullmatch(part)) is not None:
            files.append(Path(file["path"]))
        else:
            requirements.append(part)
    for requirement in requirements:
        if "@" not in requirement:  # a day of JAX is named when it is resolved
            parse_requirement(requirement)
    return ProjectEnvironment(
        folder=Path(folder["path"]).expanduser(),
        extras=folder["extras"] or "",
        groups=tuple(groups),
        files=tuple(files),
        requirements=tuple(requirements),
    )


def move_project(environment: str, repository: Path, tree: Path) -> str:
    """The environment of a project in another checkout of its repository; unchanged if it lies outside."""
    wanted = parse_project(environment.removeprefix("project:"))
    root = repository.resolve()
    paths = [path.expanduser().resolve() for path in (wanted.folder, *wanted.files)]
    if not all(path.is_relative_to(root) for path in paths):
        return environment
    folder, *files = (tree / path.relative_to(root) for path in paths)
    parts = [
        f"{folder}{wanted.extras}",
        *(f"--group {name}" for name in wanted.groups),
        *(f"-r {path}" for path in files),
    ]
    return f"project:{','.join([*parts, *wanted.requirements])}"


def is_package(folder: Path) -> bool:
    document = read_project(folder)
    if get_table(document, "tool", "uv").get("package") is False:
        return False
    return "project" in document or "build-system" in document or any((folder / name).is_file() for name in _BUILDS)


def choose_python(folder: Path) -> str | None:
    """The Python of a project as uv finds it; None if the current environment's fits."""
    required = read_required_python(folder)
    if required.contains(find_current().version.rstrip("+"), prereleases=True):
        return None
    return str(required)


def make_project(text: str, cache: Path, on_line: Callable[[str], None] | None = None) -> Path:
    text = name_days(text)
    lines, python = resolve_project(text)
    return make_pinned(f"project:{text}", lines, {}, cache, python=python, resolved=True, on_line=on_line)


def resolve_project(text: str) -> tuple[Sequence[str], str | None]:
    """All packages of a project's environment, and its Python; None if the current environment's fits."""
    wanted = parse_project(text)
    if not wanted.folder.is_dir():
        hint = "paths are relative to the working directory: run the command in the project's folder"
        raise EnvironmentFailedError(f"project:{text}: {wanted.folder} is not a folder.", hint)
    python = choose_python(wanted.folder)
    lines, options = wanted.render_inputs(), wanted.render_options()
    return compile_lines(f"project:{text}", lines, *options, python=python), python
