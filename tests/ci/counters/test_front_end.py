"""The front end in real processes: what JAX reports is a sample of the job, whatever else its path holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_ci.bisect.options.options import options_from_parameters
from nightjar_ci.counters.measure import FOLDER, read_front_end, sum_outermost
from nightjar_ci.errors import InputError
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.night.run_job import run_job
from tests.ci.bisect.test_command import answer, program, rungs
from tests.ci.jobs import GOOD, make_job, python

MONITORING = """
listeners = []


def register_event_duration_secs_listener(listener):
    listeners.append(listener)


def report(stage, seconds):
    for listener in listeners:
        listener("/jax/core/compile/" + stage + "_duration", seconds, fun_name="step")
        listener("/jax/other", 99.0)
"""
COMPILE = """
import jax.monitoring
jax.monitoring.report("jaxpr_trace", 2.0)
jax.monitoring.report("jaxpr_to_mlir_module", 0.5)
jax.monitoring.report("backend_compile", 4.0)
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job whose JAX is a few lines that report what they are told."""
    package = tmp_path / "path" / "jax"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "monitoring.py").write_text(MONITORING)
    (tmp_path / "path" / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 1\n")
    return make_job(
        *python("assert theirs == 1\n" + COMPILE + GOOD),
        measure=("front_end",),
        env={"PYTHONPATH": str(tmp_path / "path")},
    )


def test_what_jax_reports_becomes_samples_of_the_job(job: Job, tmp_path: Path) -> None:
    outcome = run_job(job, tmp_path / "out")
    assert (outcome.state, outcome.message) == ("completed", None)
    run = read_run(tmp_path / "out" / "result.json")
    measured = {sample.name: (sample.unit, round(sample.values[0], 6)) for sample in run.samples}
    assert measured["trace_time"] == ("s", 2.0)
    assert measured["lower_time"] == ("s", 0.5)
    assert measured["compile_time"] == ("s", 4.0)
    assert measured["trace_count"] == measured["compile_count"] == ("programs", 1.0)
    assert "step_time" in measured
    assert not (tmp_path / "out" / FOLDER).exists()


def test_a_job_that_is_not_measured_is_not_touched(job: Job, tmp_path: Path) -> None:
    run_job(replace(job, measure=()), tmp_path / "out")
    assert read_run(tmp_path / "out" / "result.json").sample("trace_time") is None


def test_a_sample_of_the_job_itself_stays(job: Job, tmp_path: Path) -> None:
    own = 'sample = {"name": "trace_time", "unit": "s", "better": "lower", "values": [7.0], "warmup": 0}\n'
    rewrite = """
path = pathlib.Path(os.environ["NIGHTJAR_OUT"], "result.json")
import json
result = json.loads(path.read_text())
result["samples"].append(sample)
path.write_text(json.dumps(result))
"""
    command = python(own + "import os, pathlib\n" + COMPILE + GOOD + rewrite)
    assert run_job(replace(job, command=command), tmp_path / "out").state == "completed"
    sample = read_run(tmp_path / "out" / "result.json").sample("trace_time")
    assert sample is not None
    assert sample.values == (7.0,)


def test_a_job_without_jax_says_so(job: Job, tmp_path: Path) -> None:
    outcome = run_job(replace(job, command=python(GOOD)), tmp_path / "out")
    assert outcome.state == "invalid"
    assert "no Python process of the job compiled a program with JAX" in str(outcome.message)


def test_a_job_that_failed_is_not_called_unmeasured(job: Job, tmp_path: Path) -> None:
    outcome = run_job(replace(job, command=python("raise SystemExit(2)")), tmp_path / "out")
    assert outcome.state == "failed"
    assert "measured" not in str(outcome.message)


def test_real_jax_is_counted(tmp_path: Path) -> None:
    program = """
import jax
step = jax.jit(lambda x: jax.numpy.sin(x) * 2 + jax.jit(lambda y: y * y)(x))
for _ in range(3):
    step(1.0)
"""
    job = make_job(*python(program + GOOD), measure=("front_end",), env={"JAX_PLATFORMS": "cpu"}, timeout_s=120.0)
    outcome = run_job(job, tmp_path / "out")
    assert outcome.state == "completed", outcome.message
    run = read_run(tmp_path / "out" / "result.json")
    counts = {sample.name: sample.values[0] for sample in run.samples if sample.name.endswith("_count")}
    assert (counts["trace_count"], counts["compile_count"]) == (1.0, 1.0)
    assert 4 <= counts["primitive_count"] <= 7  # sin, mul, jit, mul, add, and casts of the weak type


def test_files_that_a_job_left_in_their_place_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "front-end"
    folder.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(["trace", 1, 0.0, 1.0]))
    (folder / "1.jsonl").symlink_to(secret)
    with pytest.raises(InputError, match="link"):
        read_front_end(tmp_path)


@pytest.mark.parametrize(
    "line", ["[]", "{}", '["trace", 1, "a", 2]', '["trace", 1, 2, 1]', '["trace", 1, 0, Infinity]', "x"]
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path: Path, line: str) -> None:
    folder = tmp_path / FOLDER / "front-end"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text(f'{line}\n["trace", 1, 3.0, 4.5]\n["compile", 1, 4')
    assert next((sample.name, sample.values[0]) for sample in read_front_end(tmp_path)) == ("trace_time", 1.5)


def test_nested_and_overlapping_spans_count_once() -> None:
    assert sum_outermost([(1, 0.0, 4.0), (1, 1.0, 2.0), (1, 3.0, 5.0), (2, 0.0, 1.0)]) == 6.0


def test_a_job_that_leaves_too_much_is_refused_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / FOLDER / "front-end"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text('["trace", 1, 3.0, 4.5]\n' * 11)
    monkeypatch.setattr("nightjar_ci.counters.measure._MOST_EVENTS", 10)
    with pytest.raises(InputError, match="more was recorded than is read within 30 s"):
        read_front_end(tmp_path)


def test_a_program_that_looks_for_jax_before_it_imports_it_is_seen(job: Job, tmp_path: Path) -> None:
    look = "import importlib.util\nassert importlib.util.find_spec('jax') is not None\n"
    outcome = run_job(replace(job, command=python(look + COMPILE + GOOD)), tmp_path / "out")
    assert (outcome.state, outcome.message) == ("completed", None)


def test_a_bisection_counts_as_the_night_did(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", job.env["PYTHONPATH"])
    options = "nightjar_ci.bisect.options.options.options_from_parameters"
    monkeypatch.setattr(options, lambda read: replace(options_from_parameters(read), measure=("front_end",)))
    compiles = (
        "import jax.monitoring\nfor _ in range(1 + (n >= 3)):\n    jax.monitoring.report('backend_compile', 1.0)\n"
    )
    test = program(tmp_path, compiles + GOOD)
    found = answer("--rungs", rungs(tmp_path, 5), "--metric", "compile_count", *test)
    assert (found["exit_code"], found["culprits"]) == (0, ["n003"])
