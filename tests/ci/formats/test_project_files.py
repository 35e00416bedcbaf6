"""Where a project keeps its policies and baselines, and what is used where it has none."""

from pathlib import Path

import pytest

from nightjar_ci.commands.gate import note_policies
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.project_files import OWN_POLICIES, find_baselines, find_policies
from tests.places import ROOT


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_empty_folder_has_the_built_in_policies_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    note_policies(find_policies(None))
    out, err = capsys.readouterr()
    assert (out, err.count("built-in")) == ("", 1)
    assert find_baselines(None) == Path("ci/nightjar/baselines")


def test_the_built_in_policies_judge_losses_by_baselines_and_all_measures_by_history() -> None:
    policies = read_policies(OWN_POLICIES)
    assert policies.for_curve("any", "train_loss") is not None
    accuracy = policies.for_curve("any", "eval_accuracy")
    assert accuracy is not None
    assert accuracy.scale == "linear"
    loss = policies.for_history("any", "loss")
    assert loss is not None
    assert loss.floor == 0.1
    assert policies.for_history("any", "tests_time") is None
    assert policies.for_history("any", "test_sort") is not None
    assert policies.for_facts("any", "train_step") is not None


@pytest.mark.parametrize("folder", ["ci/nightjar", "ci"])
def test_files_of_the_project_come_first_silently(
    project: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / folder).mkdir(parents=True)
    (project / folder / "policies.toml").write_text('schema = "nightjar.policies/1"\n')
    assert find_policies(None) == Path(folder, "policies.toml")
    note_policies(Path(folder, "policies.toml"))
    assert find_baselines(None) == Path(folder, "baselines")
    assert capsys.readouterr().err == ""


def test_baselines_stay_where_they_are(project: Path) -> None:
    (project / "ci" / "baselines").mkdir(parents=True)
    assert find_baselines(None) == Path("ci/baselines")


def test_a_named_file_is_used_even_where_the_project_has_one(project: Path) -> None:
    (project / "ci").mkdir()
    (project / "ci" / "policies.toml").touch()
    assert find_policies(Path("mine.toml")) == Path("mine.toml")
    assert find_baselines(Path("mine")) == Path("mine")


def test_the_reference_shows_the_built_in_policies() -> None:
    page = (ROOT / "docs" / "reference" / "policies.md").read_text(encoding="utf-8")
    assert f"```toml\n{OWN_POLICIES.read_text(encoding='utf-8')}```" in page
