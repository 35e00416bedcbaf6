"""The workflow that is written for a project."""

import re
from pathlib import Path

import pytest
import yaml

from nightjar_ci.projects.look import look_at
from nightjar_ci.projects.matrix_text import render_requirement, render_workflow
from tests.ci.projects.folders import LIBRARY, write_folder
from tests.places import ROOT

USED = re.compile(r"uses: (\S+@[0-9a-f]{40} # v[\d.]+)")


@pytest.mark.parametrize(
    ("files", "path"), [({}, ".github/workflows/nightjar.yml"), ({".gitlab-ci.yml": ""}, "ci/nightjar/gitlab-ci.yml")]
)
def test_a_project_gets_the_workflow_of_its_own_ci(tmp_path: Path, files: dict[str, str], path: str) -> None:
    written, text = render_workflow(look_at(write_folder(tmp_path, LIBRARY, files)))
    assert str(written) == path
    assert isinstance(yaml.safe_load(text), dict)
    assert not re.search(r"MINUTE|PYTHON|REQUIREMENT", text)
    assert 'pip install "nightjar-ci"' in text  # here it is installed from a folder


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ("", "nightjar-ci"),
        ('{"url": "file:///wheels/a.whl", "archive_info": {}}', "nightjar-ci"),
        ('{"url": "https://host/a.whl", "archive_info": {}}', "nightjar-ci @ https://host/a.whl"),
        ('{"url": "https://me:word@host/a.whl", "archive_info": {}}', "nightjar-ci"),
        ('{"url": "https://host/a", "vcs_info": {"commit_id": "1a"}}', "nightjar-ci @ git+https://host/a@1a"),
        ('{"url": 1}', "nightjar-ci"),
        ("[]", "nightjar-ci"),
    ],
)
def test_a_workflow_installs_what_another_machine_can_have(origin: str, requirement: str) -> None:
    assert render_requirement(origin) == requirement


def test_submodules_and_large_files_are_checked_out(tmp_path: Path) -> None:
    files = {".gitmodules": "", ".gitattributes": "*.bin filter=lfs diff=lfs\n"}
    _, text = render_workflow(look_at(write_folder(tmp_path, LIBRARY, files)))
    assert "with: { persist-credentials: false, lfs: true, submodules: true }" in text


@pytest.mark.parametrize(("required", "chosen"), [(">=3.10", "3.12"), ("~=3.11,<3.12", "3.11"), (">=3.13", "3.13")])
def test_its_python_is_one_that_the_project_allows(tmp_path: Path, required: str, chosen: str) -> None:
    pyproject = f'[project]\nname = "a"\nversion = "1"\nrequires-python = "{required}"\n'
    _, text = render_workflow(look_at(write_folder(tmp_path, {"pyproject.toml": pyproject})))
    assert f'python-version: "{chosen}"' in text


def test_its_actions_are_those_of_this_repository_at_the_same_commits(tmp_path: Path) -> None:
    own = {match for path in (ROOT / ".github").rglob("*.yml") for match in USED.findall(path.read_text())}
    _, text = render_workflow(look_at(tmp_path))
    used = USED.findall(text)
    assert len(used) == text.count("uses:") > 3
    assert {action.replace("cache/save", "cache").replace("cache/restore", "cache") for action in used} <= own
