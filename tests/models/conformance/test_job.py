"""The job that runs the conformance tests every night, and what it says of a library that computes something else."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nightjar_ci.night.matrix import expand, read_matrix
from tests.places import ROOT

FAULT = """
from flax import nnx

correct = nnx.RMSNorm.__call__
nnx.RMSNorm.__call__ = lambda self, x, mask=None: 1.5 * correct(self, x, mask)
"""


@pytest.mark.slow
def test_the_nightly_names_the_function_that_computes_something_else(tmp_path: Path) -> None:
    (job,) = [
        job
        for job in expand(read_matrix(ROOT / "ci" / "matrix" / "nightly-upstream.toml"))
        if job.id == "conformance-tests-cpu"
    ]
    (tmp_path / "fault.py").write_text(FAULT)
    report = tmp_path / "junit.xml"
    command = [sys.executable, *job.command[1:], "-p", "fault", "-p", "no:cacheprovider", f"--junitxml={report}"]
    selected = ["-k", "test_flax_nnx_layers and (linear_kernel or rms_norm)"]
    run = subprocess.run(
        [*command, *selected],
        cwd=tmp_path,
        env={**os.environ, **job.env, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    cases = ElementTree.parse(report).iter("testcase")
    outcomes = {
        (case.get("classname", "").rpartition(".")[2], case.get("name")): case.find("failure") for case in cases
    }
    failed = [names for names, failure in outcomes.items() if failure is not None]
    assert failed == [("test_flax_nnx_layers", "test_rms_norm")]
    assert len(outcomes) == 2


@pytest.mark.slow
def test_a_project_around_it_changes_nothing_and_without_pytest_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text("import there_is_no_such_module\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    command = [sys.executable, "-m", "nightjar_models.conformance"]
    options = ["-p", "no:cacheprovider", "-q", "-k", "test_flax_nnx_layers and rms_norm"]
    run = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (tmp_path / "pytest").mkdir()
    (tmp_path / "pytest" / "__init__.py").write_text("raise ModuleNotFoundError\n")
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, "nightjar-models[conformance]" in run.stderr) == (3, True)
