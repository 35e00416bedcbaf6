"""The workflow that runs a project's matrix every night, for GitHub or GitLab.

In: a `Project`. Out: the path and the text of its workflow, from `templates`. It installs this program from the origin
of the running one: a commit of a repository, an address, or the package index.

Source: packaging.python.org, "Recording the Direct URL Origin of installed distributions".
"""

from __future__ import annotations

import json
import zlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from nightjar_ci.environments.declared import read_declared
from nightjar_ci.errors import InputError
from nightjar_ci.projects.look import Project

NAME = "nightjar-ci"
_TEMPLATES = Path(__file__).with_name("templates")
_PATHS = {"github": Path(".github/workflows/nightjar.yml"), "gitlab": Path("ci/nightjar/gitlab-ci.yml")}
_PYTHONS = ("3.12", "3.13", "3.14", "3.11")  # the first that a project allows; nightjar-ci needs 3.11


def render_workflow(project: Project) -> tuple[Path, str]:
    """The path of a project's workflow, relative to its folder, and its text."""
    text = (_TEMPLATES / f"{project.ci}.yml").read_text(encoding="utf-8")
    minute = zlib.crc32(project.name.encode()) % 60  # so that projects do not all start at once
    text = text.replace("MINUTE", str(minute)).replace("PYTHON", choose_python(project.folder))
    return _PATHS[project.ci], text.replace("REQUIREMENT", render_requirement(read_origin()))


def read_origin() -> str:
    """Where this program was installed from, as its installer recorded it; empty for a package index."""
    try:
        return distribution(NAME).read_text("direct_url.json") or ""
    except PackageNotFoundError:
        return ""


def render_requirement(origin: str) -> str:
    """What another machine has to install to have this program; the index if the origin is a folder or a file.

    >>> commit = '{"url": "https://host/nightjar", "subdirectory": "ci", "vcs_info": {"vcs": "git", "commit_id": "1a"}}'
    >>> render_requirement(commit), render_requirement('{"url": "file:///nightjar/ci", "dir_info": {}}')
    ('nightjar-ci @ git+https://host/nightjar@1a#subdirectory=ci', 'nightjar-ci')
    """
    try:
        document = json.loads(origin)
        url = urlsplit(document["url"])
        commit = document.get("vcs_info", {}).get("commit_id")
    except (ValueError, KeyError, TypeError, AttributeError):
        return NAME
    if url.scheme != "https" or url.username or '"' in document["url"]:
        return NAME  # a folder of this machine, or an address with somebody's password
    if commit is None:
        return f"{NAME} @ {document['url']}"
    folder = f"#subdirectory={document['subdirectory']}" if "subdirectory" in document else ""
    return f"{NAME} @ git+{document['url']}@{commit}{folder}"


def choose_python(folder: Path) -> str:
    text = read_declared(folder).get("requires-python", "")
    try:
        required = SpecifierSet(str(text))
    except InvalidSpecifier:
        raise InputError(f"{folder}: the project's requires-python {text!r} is not valid.") from None
    return next((version for version in _PYTHONS if required.contains(f"{version}.9")), _PYTHONS[0])
