"""What outlives a job on GitHub, caches and pages, and who sees its token."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rehearsal.runner import Runner
from tests.rehearsal.stand_ins import StandIns
from tests.rehearsal.workflow import read_workflow
from tests.repo.test_workflows import CONTEXTS, GITHUB, ROOT, WORKFLOWS, Rehearsed, read_steps


def note_actions(name: str, folder: Path, **contexts: Any) -> dict[str, Mapping[str, Any]]:
    """What a workflow asks of each action in these contexts, the last time."""
    asked: dict[str, Mapping[str, Any]] = {}
    stand_ins = StandIns(folder, folder)
    stand_ins.artifacts.mkdir()
    stand_ins.act = lambda uses, given: str(asked.update({uses: given}))  # type: ignore[method-assign]
    runner = Runner(ROOT, stand_ins, {**CONTEXTS, **contexts}, Rehearsed())
    runner.run(read_workflow(ROOT / ".github" / "workflows" / name, ROOT))
    return asked


def test_pages_of_a_run_that_is_run_again_are_deployed(tmp_path: Path) -> None:
    asked = note_actions("pages.yml", tmp_path, github={**GITHUB, "run_attempt": "2"})
    assert asked["actions/upload-pages-artifact"]["name"] == "pages-2"  # that of the first attempt stays in the run
    assert asked["actions/deploy-pages"]["artifact_name"] == "pages-2"


@pytest.mark.parametrize("event", ["push", "schedule"])
def test_a_change_of_the_documentation_keeps_no_state_and_shows_all_that_was_kept(tmp_path: Path, event: str) -> None:
    asked = note_actions("pages.yml", tmp_path, github={**GITHUB, "event_name": event})
    assert ".nightjar/bisections" in asked["actions/cache/restore"]["path"].split()
    assert ("actions/download-artifact" in asked) == ("actions/cache/save" in asked) == (event == "schedule")


def test_what_is_restored_is_what_was_saved() -> None:
    for path in WORKFLOWS:
        for steps in read_steps(path).values():
            kept = [step["with"] for step in steps if step.get("uses", "").startswith("actions/cache/")]
            assert len({(one["path"], one["key"]) for one in kept}) == len(kept) // 2  # another list is another cache


@pytest.mark.parametrize("where", ["github-hosted", "self-hosted"])
def test_packages_are_those_of_one_lock_and_a_runner_of_ones_own_keeps_its_own(tmp_path: Path, where: str) -> None:
    asked = note_actions("weekly-checks.yml", tmp_path, runner={"os": "Linux", "environment": where})
    assert ("actions/cache" in asked) == (where == "github-hosted")
    assert "restore-keys" not in asked.get("actions/cache", {})  # each lock's packages would be those of all before


@pytest.mark.parametrize(
    ("repository", "token", "sent"),
    [
        ("ghcr.io/me/nightjar", "", "ghcr.io workflow's"),
        ("ghcr.io/me/nightjar", "mine", "ghcr.io mine"),
        ("registry.example/me/nightjar", "mine", "registry.example mine"),
        ("registry.example/me/nightjar", "", ""),
        ("ghcr.io.example/me/nightjar", "", ""),
    ],
)
def test_no_other_registry_gets_the_own_token(repository: str, token: str, sent: str, tmp_path: Path) -> None:
    (step,) = yaml.safe_load((ROOT / ".github/actions/login/action.yml").read_text())["runs"]["steps"]
    (tmp_path / "docker").write_text(f'#!/bin/sh\nprintf \'%s %s\' "$5" "$(cat)" >{tmp_path}/sent\n')
    (tmp_path / "docker").chmod(0o755)
    given = {"REPOSITORY": repository, "ACCOUNT": "me", "TOKEN": token, "OWN": "workflow's"}
    assert set(given) == set(step["env"])
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", **given}
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=environ, check=True)
    assert ((tmp_path / "sent").read_text() if (tmp_path / "sent").exists() else "") == sent


FOREIGN = ("-- run ", "--rerun ", "-- bisect ", "nightjar-ci nightly ", "nightjar-ci bisect ")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_other_peoples_code_runs_in_the_sandbox_and_beside_no_secret(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    for name, job in workflow["jobs"].items():
        steps = job.get("steps", [])
        foreign = [at for at, step in enumerate(steps) if any(part in step.get("run", "") for part in FOREIGN)]
        if not foreign:
            continue
        before = [step.get("uses") for step in steps[: foreign[0]]]
        assert "./.github/actions/sandbox" in before, f"{path.name}: {name}"
        seen = [workflow.get("env"), job.get("env"), *(steps[at].get("env") for at in foreign)]
        assert not any(word in str(seen) for word in ("secrets.", "github.token")), f"{path.name}: {name}"


def test_nights_and_bisections_run_other_peoples_code() -> None:
    texts = {path.stem: path.read_text() for path in WORKFLOWS}
    assert {"night", "bisect"} <= {name for name, text in texts.items() if any(part in text for part in FOREIGN)}
