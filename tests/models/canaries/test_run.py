"""A canary says what it saw, and its exit code says whether the defect is there."""

import importlib
from importlib.metadata import version

import pytest

from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_models.canaries import axis_name, quadratic_tracing, run
from tests.places import ROOT


def test_an_unknown_name_ends_with_2_and_names_the_canaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main("axis_nam") == 2
    assert "unknown canary 'axis_nam': expected one of array_functions, axis_name, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seen", "code", "said"), [("rows 1", 1, "still broken: axis_name: rows 1"), (None, 0, "fixed: ")]
)
def test_what_was_seen_is_the_exit_code(
    seen: str | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(axis_name, "look", lambda: seen)
    assert run.main("axis_name") == code
    line = capsys.readouterr().out
    assert line.startswith(said)
    assert f"jax {version('jax')}" in line


@pytest.mark.skipif(version("jax") != "0.10.2", reason="another release may have mended it")
def test_the_axis_name_is_split_by_jax_0_10_2() -> None:
    assert "unbound axis name: d" in str(axis_name.look())


def test_calls_are_counted_and_not_seconds() -> None:
    def work() -> None:
        for _ in range(7):
            call()

    def call() -> None:
        pass

    assert quadratic_tracing.count_calls(work) == 8


def test_each_program_has_a_cell_whose_failure_is_known() -> None:
    jobs = expand(read_matrix(ROOT / "ci" / "matrix" / "canaries.toml"))
    modules = {job.command[-1]: importlib.import_module(f"nightjar_models.canaries.{job.command[-1]}") for job in jobs}
    for job in jobs:
        if hasattr(modules[job.command[-1]], "look"):
            assert job.tests is not None
            assert job.tests.find_known(f"canaries.{job.command[-1]}") is not None
    assert len(modules) == len(jobs) == 8
