"""The metadata that a project declares: its name, requirements, extras and Python.

In: a folder. Out: a table like `[project]` of `pyproject.toml`. Projects without that table use Poetry's table,
`setup.cfg`, or the call of `setup` in `setup.py`, which is read and never run. Computed values are left out: uv learns
them when it builds the project.

Source: setuptools.pypa.io, "Configuring setuptools using setup.cfg files"; python-poetry.org, "The pyproject.toml
file".
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from nightjar_ci.environments.sources import get_table, read_project, read_text
from nightjar_ci.errors import InputError

_KEYS = {  # keys of setuptools, to `[project]`'s
    "name": "name",
    "install_requires": "dependencies",
    "extras_require": "optional-dependencies",
    "python_requires": "requires-python",
}


def read_declared(folder: Path) -> Mapping[str, Any]:
    """The metadata of a project in the terms of `[project]`; empty if nothing declares any."""
    document = read_project(folder)
    if "project" in document:
        return get_table(document, "project")
    return {**_read_setup_py(folder), **_read_setup_cfg(folder), **_read_poetry(document)}


def read_required_python(folder: Path) -> SpecifierSet:
    required = str(read_declared(folder).get("requires-python", ""))
    try:
        return SpecifierSet(required)
    except InvalidSpecifier:
        raise InputError(f"{folder}: the project's requires-python {required!r} is not valid.") from None


def _read_poetry(document: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of Poetry's own table; its versions have another syntax, so only names are taken."""
    poetry = get_table(document, "tool", "poetry")
    table: dict[str, Any] = {}
    if isinstance(poetry.get("name"), str):
        table["name"] = poetry["name"]
    if dependencies := [name for name in get_table(poetry, "dependencies") if name != "python"]:
        table["dependencies"] = dependencies
    if extras := get_table(poetry, "extras"):
        table["optional-dependencies"] = dict(extras)
    return table


def _read_setup_cfg(folder: Path) -> dict[str, Any]:
    parser = read_ini(folder / "setup.cfg")
    table: dict[str, Any] = {}
    for section, key in (("metadata", "name"), ("options", "python_requires")):
        if value := parser.get(section, key, fallback="").strip():
            table[_KEYS[key]] = value
    if lines := _split(parser.get("options", "install_requires", fallback="")):
        table["dependencies"] = lines
    if parser.has_section("options.extras_require"):
        extras = parser["options.extras_require"]
        table["optional-dependencies"] = {name: _split(value) for name, value in extras.items()}
    return table


def read_ini(path: Path) -> configparser.ConfigParser:
    """The sections of a file; none if it cannot be read."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(read_text(path))
    except configparser.Error:
        parser.clear()
    return parser


def _split(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip() and not line.strip().startswith("#")]


def _read_setup_py(folder: Path) -> dict[str, Any]:
    try:
        module = ast.parse(read_text(folder / "setup.py"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    constants = dict(_find_constants(module))
    table: dict[str, Any] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "setup":
            for keyword in node.keywords:
                value = _evaluate(keyword.value, constants)
                if keyword.arg in _KEYS and value is not None:
                    table[_KEYS[keyword.arg]] = value
    return table


def _find_constants(module: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _evaluate(node.value, {})
            if value is not None:
                yield node.targets[0].id, value


def _evaluate(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of a literal, of a name of a constant, or of a table with both; None if it is computed."""
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Dict):
        entries = ((key, _evaluate(value, constants)) for key, value in zip(node.keys, node.values, strict=True))
        return {key.value: value or [] for key, value in entries if isinstance(key, ast.Constant)}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
