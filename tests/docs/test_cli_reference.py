"""The reference of the command lines is that of the code."""

import os
import re
import subprocess
import sys

import noxfile
from tests.repo.cli_reference import PAGE, render_reference


def test_the_reference_is_that_of_the_code() -> None:
    assert PAGE.read_text() == render_reference(), "run `nox -s generate_docs` (python -m tests.repo.cli_reference)"


def test_every_flag_of_xla_in_the_performance_guide_is_known_to_the_locked_jaxlib() -> None:
    page = (noxfile.ROOT / "docs" / "performance-guide.md").read_text()
    flags = set(re.findall(r"--xla_\w+=[^\s`\"]+", page))
    assert len(flags) >= 8
    program = "import jax; jax.numpy.ones(1) + 1"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for given, code in ((" ".join(sorted(flags)), True), ("--xla_nonsense=1", False)):
        run = [sys.executable, "-c", program]
        done = subprocess.run(run, env={**environ, "XLA_FLAGS": given}, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is code, done.stderr[-600:]
