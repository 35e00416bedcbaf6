"""What lies among the baselines belongs to a cell of a matrix, and to a judge that reads it."""

from nightjar_ci.night.matrix import expand, read_matrix
from tests.places import ROOT

CI = ROOT / "ci"


def test_each_baseline_is_of_a_cell_that_a_matrix_has() -> None:
    cells = {job.cell for matrix in (CI / "matrix").glob("*.toml") for job in expand(read_matrix(matrix))}
    found = {folder.name for folder in (CI / "baselines").iterdir()}
    assert found
    assert found <= cells
    assert {path.name for path in (CI / "baselines").glob("*/*")} == {"convergence.json", "facts"}


def test_a_cell_is_one_program_in_all_matrices() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for matrix in sorted((CI / "matrix").glob("*.toml")):
        for job in expand(read_matrix(matrix)):
            if job.replicate is None:
                assert found.setdefault(job.cell, job.command) == job.command, f"{matrix.name}: {job.cell}"
