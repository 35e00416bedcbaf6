"""The diff of two real programs: the line that was made slower is ranked first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiling.conftest import runner

PROGRAM = """
import jax
import jax.numpy as jnp

{moved}
def attend(x, w):
    scores = x @ w
    return jax.nn.softmax(scores)

def project(x, w):
    y = {project}
    return y + 1

def loss(x, w):
    return project(attend(x, w), w).sum()

step = jax.jit(loss)
x = w = jnp.ones((192, 192))
for n in range(9):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        step(x, w).block_until_ready()
"""


@pytest.mark.slow
def test_a_line_made_slower_in_a_real_program_is_ranked_first(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    versions = {"a": ("", "x @ w"), "b": ("# moved\n" * 7, "jnp.linalg.matrix_power(x, 1025) @ w")}
    for name, (moved, project) in versions.items():
        place = tmp_path / name
        place.mkdir()
        (place / "train.py").write_text(PROGRAM.format(moved=moved, project=project))
        command = ("capture", "--steps", "1:8", "--", sys.executable, "train.py")
        done: subprocess.CompletedProcess[str] = runner(place)(*command)
        assert done.returncode == 0, done.stderr
    captures = (tmp_path / "a" / "capture", tmp_path / "b" / "capture")
    found = json.loads(runner(tmp_path)("diff", *captures, "--json").stdout)
    worst = found["lines"][0]
    assert worst["source"] == "y = jnp.linalg.matrix_power(x, 1025) @ w"
    assert worst["delta_ns"] > 0
    assert worst["before_ns"] is not None  # the line that it was, though it moved and was rewritten
