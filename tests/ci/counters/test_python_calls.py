"""Calls of Python in a run of their own: those of tracing apart from those of JAX at each call."""

from pathlib import Path

import pytest

from nightjar_ci.counters.measure import read_python_calls
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.night.run_job import run_job
from tests.ci.jobs import GOOD, make_job, python

MONITORING = """
scalars, durations = [], []
register_scalar_listener = scalars.append
register_event_duration_secs_listener = durations.append
TRACE = "/jax/core/compile/jaxpr_trace_duration"


class tracing:
    def __enter__(self):
        for listener in scalars:
            listener(TRACE, 0.0, fun_name="step")

    def __exit__(self, *error):
        for listener in durations:
            listener(TRACE, 1.0, fun_name="step")


def dispatch():
    pass
"""
PROGRAM = """
from jax.monitoring import dispatch, tracing


def call():
    pass


for _ in range(2):
    with tracing():
        for _ in range({inside}):
            call()
            with tracing():
                dispatch()
    for _ in range({outside}):
        call()
        dispatch()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A path with a JAX of a few lines, which says that it traces."""
    package = tmp_path / "path" / "jax"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "monitoring.py").write_text(MONITORING)
    return str(tmp_path / "path")


def run(job: Job, folder: Path) -> tuple[Outcome, dict[str, float]]:
    outcome = run_job(job, folder)
    samples = read_run(folder / "result.json").samples
    return outcome, {sample.name: sample.values[0] for sample in samples if sample.name.endswith("_count")}


def count(path: str, folder: Path, *, inside: int, outside: int) -> dict[str, float]:
    program = PROGRAM.format(inside=inside, outside=outside)
    job = make_job(*python(program + GOOD), measure=("python_calls",), env={"PYTHONPATH": path})
    outcome, counts = run(job, folder)
    assert (outcome.state, outcome.message) == ("completed", None)
    assert counts.keys() == {"trace_call_count", "dispatch_call_count"}
    return counts


def test_calls_of_tracing_and_of_jax_in_between_are_counted_apart(path: str, tmp_path: Path) -> None:
    first = count(path, tmp_path / "first", inside=5, outside=7)
    traced = count(path, tmp_path / "traced", inside=15, outside=7)
    dispatched = count(path, tmp_path / "dispatched", inside=5, outside=107)
    assert traced["trace_call_count"] - first["trace_call_count"] >= 2 * 10 * 2  # `call` and `dispatch`
    assert traced["dispatch_call_count"] == first["dispatch_call_count"]
    assert dispatched["trace_call_count"] == first["trace_call_count"]
    assert dispatched["dispatch_call_count"] - first["dispatch_call_count"] == 2 * 100  # `call` is none of JAX


def test_a_jax_that_does_not_say_when_it_begins_to_trace_is_named(path: str, tmp_path: Path) -> None:
    monitoring = Path(path, "jax", "monitoring.py")
    monitoring.write_text(monitoring.read_text().replace("register_scalar_listener = ", "other = "))
    program = PROGRAM.format(inside=1, outside=1)
    outcome, counts = run(
        make_job(*python(program + GOOD), measure=("python_calls",), env={"PYTHONPATH": path}), tmp_path / "out"
    )
    assert outcome.state == "invalid"
    assert "no call of Python was counted while JAX traced" in str(outcome.message)
    assert not counts


def test_a_run_that_counts_and_fails_is_no_measurement(path: str, tmp_path: Path) -> None:
    crash = "import os, sys\nif 'NIGHTJAR_PYTHON_CALLS' in os.environ: sys.exit(1)\n"
    job = make_job(*python(crash + GOOD), measure=("python_calls",), env={"PYTHONPATH": path})
    outcome, _ = run(job, tmp_path / "out")
    assert outcome.state == "invalid"
    assert "the run that counts calls of Python ended failed" in str(outcome.message)


@pytest.mark.parametrize("line", ["[]", "{}", '["trace", 0.5]', '["other", 2]', '["trace", "2"]', "x", '["trace", 9'])
def test_a_line_that_is_no_count_is_passed_over(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "counters" / "front-end"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text(f'["trace", 3]\n["dispatch", 1]\n{line}')
    assert [(sample.name, sample.values[0]) for sample in read_python_calls(tmp_path)] == [
        ("trace_call_count", 3.0),
        ("dispatch_call_count", 1.0),
    ]


@pytest.mark.slow
def test_real_jax_is_counted_the_same_in_each_night(tmp_path: Path) -> None:
    program = """
import jax
step = jax.jit(lambda x: jax.numpy.sin(x) * 2)
for _ in range(3):
    step(1.0)
"""
    job = make_job(*python(program + GOOD), measure=("python_calls",), env={"JAX_PLATFORMS": "cpu"}, timeout_s=120.0)
    (first, counts), (_, again) = (run(job, tmp_path / night) for night in ("first", "again"))
    assert first.state == "completed", first.message
    assert counts["trace_call_count"] > 100
    assert counts == pytest.approx(again, rel=2e-3)
    assert (
        5 <= counts["stablehlo_line_count"] <= 20
    )  # a module, a function, four operations, and no places in the source
