"""Jobs on a real Slurm cluster: several processes, arrays, lost nodes, preemption, interruption."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.executors import Task
from nightjar_ci.executors.process import end_running
from nightjar_ci.executors.slurm.executor import SlurmExecutor
from nightjar_ci.executors.slurm.slurm_job import STATE_FILE
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from nightjar_ci.formats.run_record import read_run
from tests.called import call
from tests.ci.executors.slurm.jobs import COUNT, Running, run
from tests.ci.executors.slurm.lab import Lab, running_lab
from tests.ci.jobs import GOOD, HERE, make_job, python, wait_for, write_matrix
from tests.machine import asks

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
@asks("slurm")
def cluster() -> Iterator[Lab]:
    with running_lab(2) as lab:
        yield lab


PSUM = """
import os, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
mine = lambda index: np.ones(1) * (1 + jax.process_index())
x = jax.make_array_from_callback((jax.process_count(),), NamedSharding(mesh, P("data")), mine)
total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, P()))(x)
print("sum", os.environ["SLURMD_NODENAME"], jax.process_count(), float(total))
"""


def test_processes_on_two_nodes_find_each_other_and_add_up(lab: Lab, tmp_path: Path) -> None:
    outcome = run(
        tmp_path / "job",
        *python(PSUM),
        env={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        resources=Resources(nodes=2),
        timeout_s=300,
    )
    assert outcome.completed, outcome.message
    lines = (tmp_path / "job" / "stdout.log").read_text().splitlines()
    assert sorted(line for line in lines if "sum" in line) == ["0: sum n1 2 3.0", "1: sum n2 2 3.0"]


def test_small_jobs_are_one_array_and_each_ends_as_itself(lab: Lab, tmp_path: Path) -> None:
    tasks = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        tasks.append(Task(make_job("sh", "-c", f"echo {number}; exit {number % 2}", id=f"j{number}"), HERE, folder))
    ends: dict[str, Outcome] = {}
    SlurmExecutor().run_many(tasks, lambda task, outcome: ends.update({task.job.id: outcome}))
    assert [ends[f"j{n}"].state for n in range(5)] == ["completed", "failed"] * 2 + ["completed"]
    assert [(tmp_path / str(n) / "stdout.log").read_text() for n in range(5)] == [f"{n}\n" for n in range(5)]
    ids = {json.loads((tmp_path / str(n) / STATE_FILE).read_text())["id"].partition("_")[0] for n in range(5)}
    assert len(ids) == 1


def test_a_signal_inside_is_a_signal_and_the_log_streams(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", "sh", "-c", "echo working >&2; sleep 2; kill -SEGV $$")
    outcome = job.outcome()
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("killed", None, "SIGSEGV")
    assert "working" in job.lines
    assert "working" in (outcome.message or "")


def test_a_process_that_fails_ends_the_others_and_its_exit_code_is_the_jobs(lab: Lab, tmp_path: Path) -> None:
    text = "import os, sys, time; time.sleep(0.5 if os.environ['SLURM_PROCID'] == '1' else 30); sys.exit(3)"
    outcome = run(tmp_path / "job", *python(text), resources=Resources(nodes=2))
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("failed", 3, None)


def test_a_job_that_hangs_is_cancelled_at_its_timeout(lab: Lab, tmp_path: Path) -> None:
    outcome = run(tmp_path / "job", "sleep", "60", timeout_s=2)
    assert outcome.state == "timeout"
    assert outcome.duration_s < 30
    wait_for(lambda: lab.ask("squeue", "--noheader") == "")


def test_what_the_user_interrupts_is_cancelled(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", "sleep", "60")
    assert job.slurm_id
    assert job.stop() == []
    wait_for(lambda: lab.ask("squeue", "--noheader") == "")
    assert not SlurmExecutor().under_way(tmp_path / "job")


def test_one_job_of_a_thread_ends_with_the_others(lab: Lab, tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    job = make_job("sleep", "600", executor="slurm", timeout_s=600.0)  # so that load cannot make it a timeout
    thread = threading.Thread(target=lambda: outcomes.append(SlurmExecutor().run(job, HERE, tmp_path)), daemon=True)
    thread.start()
    wait_for((tmp_path / STATE_FILE).exists)
    end_running()
    thread.join(60)
    assert [one.state for one in outcomes] == ["killed"]
    wait_for(lambda: lab.ask("squeue", "--noheader") == "")


def test_what_slurm_will_never_start_is_not_started(lab: Lab, tmp_path: Path) -> None:
    outcome = run(tmp_path / "job", "true", resources=Resources(nodes=9))
    assert outcome.state == "not_started"
    assert "can never start it: PartitionConfig" in (outcome.message or "")


def test_a_node_that_dies_with_its_job_is_replaced(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *python(COUNT))
    job.until("checkpoint")
    node = job.until("log").split()[0]
    lab.kill_node(node)
    try:
        assert job.outcome().completed
    finally:
        lab.start_node(node)
    first, second = (tmp_path / "job" / "log").read_text().splitlines()
    assert second.split()[0] != first.split()[0] == node
    assert int(second.split()[-1]) > 0
    wait_for(lambda: lab.node_states()[node] == "idle")


def test_a_preempted_cell_goes_on_where_it_was(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Running(tmp_path / "job", *python(COUNT), resources=Resources(cpus_per_task=len(os.sched_getaffinity(0))))
    job.until("checkpoint")
    monkeypatch.setenv("NIGHTJAR_SLURM_OPTIONS", "--partition=urgent --exclusive")
    assert run(tmp_path / "urgent", "sleep", "1", resources=Resources(nodes=2)).completed
    assert job.outcome().completed
    first, second = (tmp_path / "job" / "log").read_text().splitlines()
    assert first.endswith(" from 0")
    assert int(second.split()[-1]) > 0


def test_a_resumed_night_watches_the_jobs_of_a_killed_nightjar(lab: Lab, tmp_path: Path) -> None:
    jobs = {"quick": python(GOOD), "long": python(COUNT + GOOD)}
    matrix = write_matrix(tmp_path / "m.toml", jobs, executor="slurm")
    night = tmp_path / "night"
    command = [sys.executable, "-m", "nightjar_ci", "run", str(matrix), "--out", str(night)]
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")}
    killed = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for((night / "jobs" / "long" / "checkpoint").exists)
    killed.kill()
    killed.wait()
    ended = subprocess.run(
        [*command, "--resume"], env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert {one.job: one.state for one in read_night(night).jobs} == dict.fromkeys(jobs, "completed")
    assert len((night / "jobs" / "long" / "log").read_text().splitlines()) == 1  # it never started again


def test_the_tests_of_a_job_are_read(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "test_a.py").write_text("def test_one(): pass\ndef test_two(): assert False\n")
    suite = (sys.executable, "-m", "pytest", str(tmp_path / "test_a.py"))
    matrix = write_matrix(tmp_path / "m.toml", {"suite": suite}, executor="slurm", kind="test")
    call(main, "run", matrix, "--out", tmp_path / "night", cwd=tmp_path)
    found = read_run(tmp_path / "night" / "jobs" / "suite" / "result.json").tests
    assert found is not None
    assert [(case.name[-3:], case.state) for case in found.cases] == [("one", "passed"), ("two", "failed")]
    assert read_night(tmp_path / "night").jobs[0].env == {}


def test_a_first_node_without_an_address_is_an_error_and_not_a_hang(lab: Lab, tmp_path: Path) -> None:
    with lab.without_names():
        outcome = run(tmp_path / "job", "sleep", "60", resources=Resources(nodes=2))
    assert outcome.state == "failed"
    assert "the name of the first node, n1, does not resolve" in (outcome.message or "")
    assert outcome.duration_s < 30


@pytest.mark.slow
def test_a_model_trains_on_two_nodes_and_survives_the_loss_of_one(lab: Lab, tmp_path: Path) -> None:
    job = Running(
        tmp_path / "job",
        *("nightjar-models", "train", "gpt_tiny", "--mesh", "dp2", "--steps", "30", "--checkpoint-every", "5"),
        *("--set", "batch_size=8", "--out", "{out}"),
        env={"JAX_PLATFORMS": "cpu"},
        resources=Resources(nodes=2),
        timeout_s=600,
    )
    wait_for(lambda: any((tmp_path / "job").glob("*/[0-9]*")) or job.ended, seconds=300)
    lab.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    wait_for(lambda: "n2" not in lab.ask("squeue", "--noheader", "--states=running", "--format=%N"))
    lab.ask("scontrol", "update", "nodename=n2", "state=resume")
    outcome = job.outcome(600)
    assert outcome.completed, outcome.message
    record = read_run(tmp_path / "job" / "result.json")
    assert record.status == "completed"
    assert "nightjar: restart 1" in (tmp_path / "job" / "stderr.log").read_text()
