"""The action for other repositories, and the workflow that `init` writes, step by step from their YAML."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.projects.look import look_at
from nightjar_ci.projects.matrix_text import render_workflow
from tests.ci.notify.fake_github import TOKEN, run_github
from tests.ci.projects.folders import write_folder
from tests.places import ROOT
from tests.rehearsal.runner import Runner
from tests.rehearsal.stand_ins import StandIns
from tests.rehearsal.workflow import read_workflow
from tests.repo.test_workflows import CONTEXTS
from tests.stand_ins import write_programs

MATRIX = """schema = "nightjar.matrix/1"
name = "theirs"
[[job]]
name = "theirs-tests"
kind = "test"
command = ["python", "-m", "pytest", "test_theirs.py"]
"""
ONE_LINE = """on: push
jobs:
  night:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v7
      - uses: ./
        with: { python: "", bisect: "true" }
"""
PIP = f"""#!/bin/sh
echo "$*" >> "$(dirname "$0")/installed"
case "$3" in ./.nightjar/action/ci | {ROOT}/ci) set nightjar-ci ;; esac  # the workflow's, or the action's, own commit
exec python3 -c "import sys; from importlib.metadata import version; version(sys.argv[-1])" "$@"
"""
CALLER = """on: push
jobs:
  night:
    uses: ./.github/workflows/nightjar.yml
    with: { python: "", bisect: true, page: true }
"""
WRITTEN, CALLED = "written by init", "the reusable workflow"


def rehearse(repository: Path, workflow: Path, monkeypatch: pytest.MonkeyPatch, **github: Any) -> Runner:
    """Runs a workflow in a foreign repository; its pip is content with what this environment has."""
    programs = write_programs(repository.parent / "programs", {"pip": PIP})
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(here), os.environ["PATH"]]))
    monkeypatch.setenv("VIRTUAL_ENV", str(here.parent))
    monkeypatch.delenv("NIGHTJAR_STATE_DIR", raising=False)
    monkeypatch.setenv("GITHUB_ACTION_PATH", str(ROOT))
    folder = repository.parent / "github"
    folder.mkdir(exist_ok=True)
    stand_ins = StandIns(folder, repository)
    stand_ins.artifacts.mkdir(exist_ok=True)
    event = {"pull_request": {"number": "", "head": {"sha": ""}}}  # none
    contexts = {**CONTEXTS, "github": {**CONTEXTS["github"], "event": event, **github}}
    runner = Runner(repository, stand_ins, contexts)
    runner.run(read_workflow(workflow, ROOT))
    return runner


@pytest.fixture(params=["the action", CALLED, WRITTEN])
def workflow(request: pytest.FixtureRequest, repository: Path) -> Path:
    path = repository / "workflow.yml"
    path.write_text(CALLER if request.param == CALLED else ONE_LINE)
    if request.param == WRITTEN:
        path.write_text(render_workflow(look_at(repository))[1])
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    files: Mapping[str, Any] = {"ci/nightjar/matrix.toml": MATRIX, "test_theirs.py": "def test_a(): pass\n"}
    return write_folder(tmp_path / "theirs", files)


@pytest.mark.slow
def test_a_foreign_repository_has_a_night_and_its_report(
    repository: Path, workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = rehearse(repository, workflow, monkeypatch)
    assert [done for done in runner.done if done.outcome == "failure"] == []
    (folder,) = (repository / ".nightjar" / "nights").iterdir()
    assert [outcome.completed for outcome in read_night(folder).jobs] == [True]
    summary = (repository.parent / "github" / "github_step_summary").read_text()
    assert "1/1 tests" in summary
    kept = repository.parent / "github" / "artifacts"
    assert list(kept.rglob("report.html"))
    (installed,) = (repository.parent / "programs" / "installed").read_text().splitlines()
    origin = {ONE_LINE: f"{ROOT}/ci", CALLER: "./.nightjar/action/ci"}
    assert installed.split()[-1] == origin.get(workflow.read_text(), "nightjar-ci")


@pytest.mark.slow
def test_a_page_with_a_badge_is_deployed_of_a_red_night_too(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "test_theirs.py").write_text("def test_a(): assert 1 == 2\n")
    path = repository / "workflow.yml"
    path.write_text(CALLER)
    runner = rehearse(repository, path, monkeypatch)
    outcomes = {done.step: done.outcome for done in runner.done}
    assert (outcomes["Night"], outcomes["Deploy"]) == ("failure", "success")
    badge = (repository.parent / "github" / "pages" / "badges" / "all.svg").read_text()
    assert 'aria-label="theirs: regressed 2' in badge  # with the day of its night


@pytest.mark.slow
def test_without_a_page_nothing_is_deployed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = repository / "workflow.yml"
    path.write_text(CALLER.replace(", page: true", ""))
    runner = rehearse(repository, path, monkeypatch)
    assert not (repository.parent / "github" / "pages").exists()
    assert [done.step for done in runner.done if done.step == "Deploy"] == []


@pytest.mark.slow
def test_a_test_that_breaks_makes_the_night_red_and_the_report_is_kept(
    repository: Path, workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "test_theirs.py").write_text("def test_a(): assert 1 == 2\n")
    runner = rehearse(repository, workflow, monkeypatch)
    outcomes = {done.step: done.outcome for done in runner.done}
    assert outcomes["Night"] == "failure"
    assert outcomes["Keep the report"] == outcomes["Keep the nights"] == "success"
    assert "1 test fails" in (repository.parent / "github" / "github_step_summary").read_text()


@pytest.mark.slow
def test_people_are_told_of_a_red_night_if_asked_for(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "test_theirs.py").write_text("def test_a(): assert 1 == 2\n")
    path = repository / "workflow.yml"
    path.write_text(ONE_LINE.replace('bisect: "true"', "notify: comment issue"))
    with run_github(login=None) as github:
        monkeypatch.setenv("GITHUB_API_URL", github.served.url)
        monkeypatch.setenv("GITHUB_REPOSITORY", "org/repo")
        event = {"pull_request": {"number": "7", "head": {"sha": "c" * 40}}}
        runner = rehearse(repository, path, monkeypatch, token=TOKEN, event=event)
        assert {done.step: done.outcome for done in runner.done}["Notify"] == "success"
        told = [write for write in github.writes if not write.endswith("/labels")]
        assert told == ["POST /repos/org/repo/issues/7/comments", "POST /repos/org/repo/issues"]


@pytest.mark.slow
def test_an_unknown_way_to_tell_people_is_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = repository / "workflow.yml"
    path.write_text(ONE_LINE.replace('bisect: "true"', "notify: everybody"))
    runner = rehearse(repository, path, monkeypatch)
    assert {done.step: done.outcome for done in runner.done}["Notify"] == "failure"


def test_the_page_on_ci_shows_the_inputs_and_the_file_for_gitlab(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your-ci.md").read_text()
    for name, described in yaml.safe_load((ROOT / "action.yml").read_text())["inputs"].items():
        default = f" `{described['default']}`" if described["default"] else ""
        assert f"| `{name}` |{default} | {described['description']} |" in page
    _, gitlab = render_workflow(look_at(write_folder(tmp_path, {".gitlab-ci.yml": ""})))
    assert f"```yaml\n{gitlab}```" in page


def test_the_action_names_its_actions_by_the_commits_of_our_workflows() -> None:
    pinned = {
        line.strip().removeprefix("- ") for line in (ROOT / "action.yml").read_text().splitlines() if "uses:" in line
    }
    ours = "".join(path.read_text() for path in (ROOT / ".github").rglob("*.yml"))
    assert len(pinned) == 5
    assert all(line in ours for line in pinned)
