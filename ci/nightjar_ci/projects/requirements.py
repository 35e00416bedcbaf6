"""The environment in which a project's tests run.

In: the project's metadata, its pytest configuration, and the imports of its tests. Out: an environment as written in a
matrix, such as `project:.[test],pytest,jax`: the extra, the group or the file for tests; another extra if it alone has
a module that tests import; pytest and the plugins and packages that the tests use and nothing declares; the newest JAX
if the project uses JAX.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.environments.sources import get_list, get_table
from nightjar_ci.projects.pytest_config import PytestConfig

_FOR_TESTS = ("test", "tests", "testing", "unittest", "pytest", "ci")
_FOR_DEVELOPERS = ("dev", "develop", "development", "all")
_FILES = (
    "requirements-test.txt", "requirements-tests.txt", "requirements_test.txt", "requirements_tests.txt",
    "test-requirements.txt", "test_requirements.txt", "requirements/test.txt", "requirements/tests.txt",
    "requirements/requirements-test.txt", "requirements/requirements_test.txt", "tests/requirements.txt",
    "test/requirements.txt", "requirements-dev.txt", "requirements_dev.txt", "dev-requirements.txt",
    "requirements/dev.txt",
)  # fmt: skip
_OTHER_FILES = ("requirements*.txt", "*/requirements*.txt")  # if one has a module that tests import
# Modules that tests and scripts often import without declaring, to their packages: no other name is guessed.
_PACKAGES = tomllib.loads(Path(__file__).with_name("packages.toml").read_text(encoding="utf-8"))["imports"]


def choose_environment(
    folder: Path,
    document: Mapping[str, Any],
    declared: Mapping[str, Any],
    config: PytestConfig,
    imports: Iterable[str],
    *,
    uses_jax: bool,
) -> tuple[str, frozenset[str]]:
    """The environment of a project's tests, and the packages that are known to be in it.

    Args:
        document: its `pyproject.toml`.
        declared: its metadata in the terms of `[project]`.
    """
    optional, tables = get_table(declared, "optional-dependencies"), get_table(document, "dependency-groups")
    extras, groups = _choose(optional), _choose(tables)
    file = next((name for name in _FILES if (folder / name).is_file()), None)
    if extras or groups:
        file = None
    if not (extras or groups or file):
        extras, groups = _choose(optional, _FOR_DEVELOPERS), _choose(tables, _FOR_DEVELOPERS)
    lines = [*get_list(declared, "dependencies"), *(line for name in extras for line in get_list(optional, name))]
    included = [*groups]
    for entry in (entry for name in included for entry in get_list(tables, name)):
        if not isinstance(entry, dict):
            lines.append(entry)
        elif (inner := str(entry.get("include-group"))) not in included:
            included.append(inner)
    packages = set(read_names(lines))
    files = []
    if "project" not in document and (folder / "requirements.txt").is_file():
        files.append("requirements.txt")
    if file is not None:
        files.append(file)
    packages.update(*(_read_file(folder / name) for name in files))
    own = canonicalize_name(str(declared.get("name") or folder.resolve().name))
    others = sorted(str(path.relative_to(folder)) for glob in _OTHER_FILES for path in folder.glob(glob))
    undeclared = {canonicalize_name(name) for name in imports if name not in _PACKAGES} - {*packages, own}
    for name in sorted(undeclared):
        having = [extra for extra in optional if name in read_names(get_list(optional, extra))]
        extras += having[:1]
        if not having:
            files += [path for path in others if name in _read_file(folder / path)][:1]
    parts = [f"project:.[{','.join(dict.fromkeys(extras))}]" if extras else "project:."]
    parts += [f"--group {name}" for name in groups]
    parts += [f"-r {name}" for name in dict.fromkeys(files)]
    of_tools = () if extras or groups or file else _read_tools(get_table(document, "tool"))
    wanted = ["pytest", *config.plugins, *sorted(_PACKAGES[name] for name in imports if name in _PACKAGES), *of_tools]
    added = [name for name in dict.fromkeys(wanted) if name not in {*packages, "jax", own}]
    if uses_jax:
        added.append("jax")
    return ",".join([*parts, *added]), frozenset({*packages, *added})


def _read_tools(tool: Mapping[str, Any]) -> Iterator[str]:
    """The packages of tests in the tables of uv, Poetry, PDM and Hatch; names, since Poetry has other versions."""
    yield from read_names(get_list(get_table(tool, "uv"), "dev-dependencies"))
    yield from read_names(get_table(tool, "poetry", "dev-dependencies"))
    for name in (*_FOR_TESTS, *_FOR_DEVELOPERS, "hatch-test"):
        yield from read_names(get_table(tool, "poetry", "group", name, "dependencies"))
        yield from read_names(get_list(get_table(tool, "pdm", "dev-dependencies"), name))
        for key in ("dependencies", "extra-dependencies"):
            yield from read_names(get_list(get_table(tool, "hatch", "envs", name), key))


def _choose(tables: Iterable[str], names: Sequence[str] = _FOR_TESTS) -> list[str]:
    spelt: dict[str, str] = {canonicalize_name(name): name for name in tables}
    return [spelt[name] for name in names if name in spelt][:1]


def read_names(lines: Iterable[Any]) -> Iterator[str]:
    """The canonical names of the packages that requirement lines name; other lines are skipped."""
    for line in lines:
        if not isinstance(line, str):
            continue
        try:
            yield canonicalize_name(Requirement(re.sub(r"\s+#.*$", "", line.strip())).name)
        except InvalidRequirement:
            continue


def _read_file(path: Path) -> Iterable[str]:
    return read_names(path.read_text(encoding="utf-8", errors="replace").splitlines())
