"""The workflow that runs a project's matrix every night, for GitHub or GitLab.

In: a `Project`. Out: the path and the text of its workflow, from `templates`.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from nightjar_ci.environments.declared import read_declared
from nightjar_ci.errors import InputError
from nightjar_ci.projects.look import Project

_TEMPLATES = Path(__file__).with_name("templates")
_PATHS = {"github": Path(".github/workflows/nightjar.yml"), "gitlab": Path("ci/nightjar/gitlab-ci.yml")}
_PYTHONS = ("3.12", "3.13", "3.14", "3.11")  # the first that a project allows; nightjar-ci needs 3.11


def render_workflow(project: Project) -> tuple[Path, str]:
    """The path of a project's workflow, relative to its folder, and its text.

    Raises:
        InputError: the versions of Python that it allows are not valid.
    """
    text = (_TEMPLATES / f"{project.ci}.yml").read_text(encoding="utf-8")
    minute = zlib.crc32(project.name.encode()) % 60  # so that not all projects begin at once
    return _PATHS[project.ci], text.replace("MINUTE", str(minute)).replace("PYTHON", _choose_python(project.folder))


def _choose_python(folder: Path) -> str:
    text = read_declared(folder).get("requires-python", "")
    try:
        required = SpecifierSet(str(text))
    except InvalidSpecifier:
        raise InputError(f"{folder / 'pyproject.toml'}: requires-python {text!r} is not valid.") from None
    return next((version for version in _PYTHONS if required.contains(f"{version}.9")), _PYTHONS[0])
