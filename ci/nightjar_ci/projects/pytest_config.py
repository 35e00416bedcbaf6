"""The pytest configuration of a project.

In: `pyproject.toml`, `pytest.ini`, `tox.ini` or `setup.cfg`. Out: where its tests are, and the plugins of its
options.

Source: docs.pytest.org, "Configuration" (the order of files) and "ini-options".
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar_ci.environments.declared import read_ini
from nightjar_ci.environments.sources import get_table

_FILES = (("pytest.ini", "pytest"), (".pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest"))
_PATTERNS = ("test_*.py", "*_test.py")
_PLUGINS = tomllib.loads(Path(__file__).with_name("packages.toml").read_text(encoding="utf-8"))["pytest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestConfig:
    """A project's pytest configuration."""

    testpaths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = _PATTERNS
    plugins: tuple[str, ...] = ()


def read_pytest_config(folder: Path, document: Mapping[str, Any]) -> PytestConfig:
    """The configuration that pytest would use in a folder; empty if there is none."""
    options = _read_options(folder, document)
    words = (*_words(options.get("addopts", "")), *options)
    plugins = [package for word in words for pattern, package in _PLUGINS.items() if re.fullmatch(pattern, word)]
    return PytestConfig(
        testpaths=_words(options.get("testpaths", "")),
        patterns=_words(options.get("python_files", "")) or _PATTERNS,
        plugins=tuple(dict.fromkeys(plugins)),
    )


def _read_options(folder: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, section in _FILES[:2]:
        if (folder / name).is_file():
            return _read_section(folder / name, section) or {}
    tool = get_table(document, "tool", "pytest")
    if tool:
        ini = tool.get("ini_options", tool)
        return ini if isinstance(ini, dict) else {}
    for name, section in _FILES[2:]:
        if (options := _read_section(folder / name, section)) is not None:
            return options
    return {}


def _read_section(path: Path, section: str) -> Mapping[str, Any] | None:
    parser = read_ini(path)
    if parser.has_section(section):
        return dict(parser[section])
    return None


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value, comments=True))
        except ValueError:
            return tuple(value.split())
    if isinstance(value, list):
        return tuple(map(str, value))
    return ()
