"""The real thing: a small transformer step, captured with JAX's own profiler on this machine's CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.analyses.outlived import find_outlived
from nightjar_profiling.capture.session import KEEPING
from nightjar_profiling.capture_folder.tables import read_tables
from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.profiling.conftest import runner
from tests.profiling.xplane_reference import read_ops

pytestmark = pytest.mark.slow

PROGRAM = """
import jax, jax.numpy as jnp

def attention(x, qkv, out):
    q, k, v = jnp.split(x @ qkv, 3, axis=-1)
    weights = jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5)
    return x + (weights @ v) @ out

def feed_forward(x, up, down):
    return x + jax.nn.gelu(x @ up) @ down

def loss(parameters, x):
    def layer(x, p):
        return feed_forward(attention(x, p["qkv"], p["out"]), p["up"], p["down"]), None
    y = jax.lax.scan(layer, x, parameters)[0]
    bound = jnp.tanh(y).mean()
    return (y ** 2).mean() + bound - jnp.tanh(y).sum()

@jax.jit
def step(parameters, x):
    gradients = jax.grad(loss)(parameters, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)

def make(*shape):
    return jnp.full((2, *shape), 0.01)

parameters = {"qkv": make(128, 384), "out": make(128, 128), "up": make(128, 512), "down": make(512, 128)}
x = jnp.ones((4, 64, 128))
for number in range(6):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        parameters = step(parameters, x)
"""


Captured = tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]


def capture(folder: Path, *options: str, **variables: str) -> Captured:
    (folder / "train.py").write_text(PROGRAM)
    done = runner(folder)("capture", *options, "--", sys.executable, folder / "train.py", **variables)
    return done, json.loads((folder / "capture" / "profile.json").read_text()), folder / "capture"


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    kept = dict(one.split("=") for one in KEEPING.split())  # else glibc gives memory back: a warning
    return capture(tmp_path_factory.mktemp("captured"), "--steps", "3:4", **kept)


def test_nearly_all_time_of_a_training_step_is_attributed_to_the_users_lines(captured: Captured) -> None:
    done, profile, folder = captured
    assert done.returncode == 0, done.stderr
    assert profile["user_fraction"] >= 0.97
    # The rest: copies that XLA puts into a scan carry no stack; how long they take depends on the machine's load.
    assert profile["direct_fraction"] > 0.5
    shares = [profile[f"{name}_fraction"] for name in ("direct", "inferred", "unattributed")]
    assert sum(shares) == pytest.approx(1.0)
    assert profile["warnings"] == []
    assert "return x + jax.nn.gelu(x @ up) @ down" in {line["source"] for line in profile["hot_lines"]}
    assert {line["file"] for line in profile["hot_lines"]} == {str(folder.parent / "train.py")}


def test_the_time_of_a_capture_is_that_of_the_raw_trace(captured: Captured) -> None:
    _, profile, folder = captured
    tables = read_tables(folder / "tables")
    opcodes = dict(tables.instructions.select("name", "opcode").iter_rows())
    containers = {name for name, opcode in opcodes.items() if opcode in {"while", "call", "conditional"}}
    assert containers
    assert containers.isdisjoint(tables.ops["instruction"])
    thunks = read_ops(folder / "raw" / "rank0000.xplane.pb")
    raw_ns = sum(duration for *_, name, _, _, _, duration in thunks if name not in containers)
    cut_ns = round(profile["impossible_fraction"] * profile["device_time_ns"])  # of threads that lost their core
    assert profile["device_time_ns"] == raw_ns - cut_ns


def test_no_op_of_a_capture_outlives_the_start_of_one_that_reads_its_result(captured: Captured) -> None:
    _, profile, folder = captured
    assert profile["impossible_fraction"] < 0.02
    ops = read_tables(folder / "tables").ops
    assert find_outlived(ops, read_raw(folder / "raw" / "rank0000.xplane.pb").programs).is_empty()
    (device,) = measure_busy(ops).iter_rows(named=True)
    assert device["busy_ns"] <= device["span_ns"]
    threads = os.cpu_count() or 1
    assert ops["duration_ns"].sum() <= device["span_ns"] * (threads + 1)  # the pool's, and the one that calls


def test_a_line_that_xla_merged_with_another_names_it(captured: Captured) -> None:
    _, profile, folder = captured
    assert profile["lowered_fraction"] == 1.0
    lines = PROGRAM.splitlines()
    first, second = (1 + number for number, text in enumerate(lines) if "jnp.tanh(y)" in text)
    merged = {(row["line"], row["kept_line"]) for row in profile["merged_lines"]}
    assert merged & {(first, second), (second, first)}
    assert {row["file"] for row in profile["merged_lines"]} == {str(folder.parent / "train.py")}


def test_each_traced_step_is_recorded_the_first_one_too(captured: Captured) -> None:
    _, _, folder = captured
    tables = read_tables(folder / "tables")
    assert tables.steps["step"].to_list() == [3, 4]
    assert tables.ops["execution"].n_unique() == 2


def test_the_capture_says_how_long_the_step_was_traced_lowered_and_compiled(captured: Captured) -> None:
    _, _, folder = captured
    compiled = read_tables(folder / "tables").compile
    found = compiled.filter(program="step")
    assert {"trace to a jaxpr", "lower to StableHLO", "compile by XLA"} <= set(found["name"])
    assert found["duration_ns"].min() > 0  # type: ignore[operator]


def test_without_stacks_in_the_program_nothing_is_attributed_and_nothing_is_guessed(tmp_path: Path) -> None:
    done, profile, _ = capture(tmp_path, "--steps", "3:4", JAX_TRACEBACK_IN_LOCATIONS_LIMIT="0")
    assert done.returncode == 4
    assert "JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0" in done.stderr
    assert profile["device_time_ns"] > 0
    assert [profile[f"{name}_fraction"] for name in ("direct", "inferred", "user")] == [0.0, 0.0, 0.0]
    assert profile["hot_lines"] == []


def test_with_lines_and_no_stacks_in_the_program_callers_are_unknown_and_a_warning_says_so(tmp_path: Path) -> None:
    done, profile, folder = capture(tmp_path, "--steps", "3:4", JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS="0")
    assert done.returncode == 0, done.stderr
    assert "of each stack only the line is known" in done.stderr
    lines = set(read_tables(folder / "tables").frames["line"])
    main = 1 + PROGRAM.splitlines().index("        parameters = step(parameters, x)")
    assert main not in lines  # it calls all, and does no operation
    assert profile["user_fraction"] > 0.5


GENERATED = """
import linecache, jax, jax.numpy as jnp
cell = "import jax.numpy as jnp\\ndef model(x):\\n    return (jnp.sin(x) @ x).sum()\\n"
name = "<ipython-input-3-deadbeef>"
linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
names = {}
exec(compile(cell, name, "exec"), names)
for operator, function in (("@", "product"), ("+", "total")):
    exec(f"def {function}(x):\\n    return x {operator} x\\n", names)
f = jax.jit(lambda x: names["model"](names["total"](names["product"](x))))
jax.profiler.start_trace("own")
f(jnp.ones((300, 300))).block_until_ready()
jax.profiler.stop_trace()
"""


def test_generated_code_is_the_users_and_a_program_that_traces_itself_is_captured(tmp_path: Path) -> None:
    done = runner(tmp_path)("capture", "--", sys.executable, "-c", GENERATED)
    assert done.returncode == 0, done.stderr
    assert "the program's own trace was running: this profile is a copy of it" in done.stderr
    assert len(list(tmp_path.glob("own/**/*.xplane.pb"))) == 1
    profile = json.loads((tmp_path / "capture" / "profile.json").read_text())
    assert profile["steps"] is None  # the whole run
    sources = {(line["file"].partition(" ")[0], line["source"]) for line in profile["hot_lines"]}
    assert ("<ipython-input-3-deadbeef>", "return (jnp.sin(x) @ x).sum()") in sources
    assert ("<string", "return x @ x") in sources
    assert profile["user_fraction"] > 0.9
