"""What the profiling image is for: a program is captured and reported in it."""

from pathlib import Path

import pytest

from tests.docker.conftest import Runner
from tests.docker.test_models import shared_folder

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PROGRAM = "import jax; print(jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))).sum())"


def test_a_program_is_captured(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["nightjar-profiling", "capture", "--out", "/out/capture", "--", "python", "/out/program.py"]
    run(*command, **shared_folder(tmp_path))
    assert (tmp_path / "capture" / "profile.json").stat().st_size > 0
