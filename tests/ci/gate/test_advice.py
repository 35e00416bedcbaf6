"""Commands to run next: the matrix of a cell is found beside the policies, and paths are quoted."""

import shlex
from pathlib import Path

import pytest

from nightjar_ci.formats.project_files import OWN_POLICIES
from nightjar_ci.gate.advice import find_matrix, render_baseline, render_confirm
from tests.ci.nights import CELL, make_night, outcome, record

MATRIX = 'schema = "nightjar.matrix/1"\nname = "x"\n[[job]]\nname = "{}"\ncommand = ["true"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Policies, two matrices, one of them a folder below, and TOML that is no matrix."""
    place = tmp_path / "my ci"
    (place / "matrix").mkdir(parents=True)
    (place / "policies.toml").write_text('schema = "nightjar.policies/1"\n')
    (place / "a.toml").write_text(MATRIX.format("other"))
    (place / "matrix" / "nightly.toml").write_text(MATRIX.format(CELL))
    (place / "matrix" / "broken.toml").write_text("[[")
    return place


def test_the_matrix_of_a_cell_is_found_in_the_folder_and_one_below(folder: Path) -> None:
    policies = folder / "policies.toml"
    assert find_matrix(policies, CELL) == folder / "matrix" / "nightly.toml"
    assert find_matrix(policies, "other") == folder / "a.toml"
    assert find_matrix(policies, "absent") is None


def test_with_built_in_policies_the_matrix_that_init_writes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ci" / "nightjar").mkdir(parents=True)
    (tmp_path / "ci" / "nightjar" / "matrix.toml").write_text(MATRIX.format(CELL))
    assert find_matrix(OWN_POLICIES, CELL) == Path("ci/nightjar/matrix.toml")


@pytest.mark.parametrize("facts_only", [True, False])
def test_a_baseline_is_made_by_a_command_that_can_be_pasted(folder: Path, facts_only: bool) -> None:
    command = render_baseline(CELL, folder / "policies.toml", Path("base lines"), facts_only=facts_only)
    assert command is not None
    assert shlex.split(command) == [
        *("nightjar-ci", "baseline", str(folder / "matrix" / "nightly.toml"), "--jobs", CELL),
        *("--policies", str(folder / "policies.toml"), "--baselines", "base lines"),
        *(["--facts-only"] if facts_only else []),
    ]
    assert render_baseline("absent", folder / "policies.toml", Path("b"), facts_only=facts_only) is None


@pytest.mark.parametrize(("cell", "expected"), [(CELL, "matrix/nightly.toml"), ("absent", None)])
def test_pairs_are_run_with_the_matrix_of_the_night(folder: Path, cell: str, expected: str | None) -> None:
    night = make_night(folder / "night", [(outcome("unknown"), None), (outcome(f"{cell}-s0"), record())])
    command = shlex.split(render_confirm(night, folder / "policies.toml", Path("b")))
    matrix = "MATRIX" if expected is None else str(folder / expected)
    assert command[:5] == ["nightjar-ci", "gate", str(night), "--rerun", matrix]
    given = shlex.split(render_confirm(night, folder / "policies.toml", Path("b"), Path("mine.toml")))
    assert given[4:] == ["mine.toml", "--policies", str(folder / "policies.toml"), "--baselines", "b"]


def test_built_in_policies_are_not_named_and_the_matrix_is_searched_in_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    command = render_baseline(CELL, OWN_POLICIES, Path("b"), facts_only=False)
    assert command == f"nightjar-ci baseline matrix/nightly.toml --jobs {CELL} --baselines b"
