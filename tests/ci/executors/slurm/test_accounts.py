"""Jobs on a real Slurm cluster with accounts (slurmdbd over MariaDB): every final state of `sacct`."""

import os
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nightjar_ci.executors.slurm.cluster import Cluster
from nightjar_ci.formats.resources import Resources
from tests.ci.executors.slurm.jobs import COUNT, Running, run
from tests.ci.executors.slurm.lab import Lab, running_lab
from tests.ci.jobs import python, wait_for
from tests.machine import asks

pytestmark = pytest.mark.slurm

# Takes 200 MB, and says so before and after.
GREEDY = "print('asks', flush=True); kept = bytearray(200_000_000); print('has')"


@pytest.fixture(scope="module")
@asks("slurm_accounts")
def cluster() -> Iterator[Lab]:
    with running_lab(2, accounts=True) as lab:
        yield lab


def sacct(lab: Lab, slurm_id: str) -> str:
    return lab.ask(
        "sacct", "--allocations", "--noheader", "--parsable2", "--format=State", f"--jobs={slurm_id}"
    ).strip()


def node_of(lab: Lab, job: Running) -> str:
    def asked() -> str:
        return lab.ask("squeue", "--noheader", "--states=running", "--format=%N", f"--jobs={job.slurm_id}").strip()

    wait_for(asked)
    return asked()


def went_on_from(node: str, folder: Path) -> str:
    """The node on which a job that counts went on from its checkpoint, after it had begun on another."""
    first, second = (folder / "log").read_text().splitlines()
    assert first == f"{node} from 0"
    assert int(second.split()[-1]) > 0
    return second.split()[0]


def test_the_states_come_from_the_accounts(lab: Lab, tmp_path: Path) -> None:
    assert Cluster().keeps_accounts()
    job = Running(tmp_path / "job", "sh", "-c", "exit 7")
    outcome = job.outcome()
    assert (outcome.state, outcome.exit_code) == ("failed", 7)
    wait_for(lambda: sacct(lab, job.slurm_id) == "FAILED")
    # accounts that were away hear of a start and its state first, and of the exit code after that
    wait_for(lambda: Cluster().states([job.slurm_id])[job.slurm_id].exit_code == 7)
    assert run(tmp_path / "good", "true").completed


def test_slurms_own_time_limit_is_a_timeout_and_is_not_tried_again(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", "sleep", "100", timeout_s=600)
    node_of(lab, job)
    soon = (datetime.now() + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%S")  # the controller looks every 30 s
    lab.ask("scontrol", "update", f"jobid={job.slurm_id}", f"endtime={soon}")
    outcome = job.outcome()
    assert outcome.state == "timeout"
    assert f"Slurm job {job.slurm_id} ended with TIMEOUT on n" in (outcome.message or "")
    assert "submitted 1 times" in (outcome.message or "")
    assert sacct(lab, job.slurm_id) == "TIMEOUT"


@pytest.mark.slurm_memory
@pytest.mark.parametrize("through_shell", [False, True])
def test_more_memory_than_asked_for_is_out_of_memory(lab: Lab, tmp_path: Path, through_shell: bool) -> None:
    command = python(GREEDY)
    if through_shell:  # whose own exit code is 1
        command = ("sh", "-c", '"$@" || exit 1', "sh", *command)
    job = Running(tmp_path / "job", *command, resources=Resources(memory="60M"))
    outcome = job.outcome()
    assert (outcome.state, outcome.signal) == ("killed", "SIGKILL")
    assert f"Slurm job {job.slurm_id} ended with OUT_OF_MEMORY on n" in (outcome.message or "")
    assert "raise resources.memory" in (outcome.message or "")
    assert (tmp_path / "job" / "stdout.log").read_text() == "asks\n"


def test_what_somebody_else_cancels_is_cancelled_by_name(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", "sleep", "100")
    node_of(lab, job)
    wait_for(lambda: sacct(lab, job.slurm_id) == "RUNNING")  # accounts alone have the name
    lab.ask("scancel", job.slurm_id)
    outcome = job.outcome()
    assert outcome.state == "killed"
    assert f"Slurm job {job.slurm_id} ended with CANCELLED by 0 on n" in (outcome.message or "")


def test_a_job_that_is_put_back_into_the_queue_is_not_submitted_a_second_time(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *python(COUNT))
    job.until("checkpoint")
    slurm_id, node = job.slurm_id, node_of(lab, job)
    lab.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        wait_for(lambda: sacct(lab, slurm_id) == "NODE_FAIL")  # though it waits to start again
        assert job.outcome().completed
    finally:
        lab.ask("scontrol", "update", f"nodename={node}", "state=resume")
    assert job.slurm_id == slurm_id
    went_on_from(node, tmp_path / "job")
    wait_for(lambda: lab.node_states()[node] == "idle")


def test_a_job_that_its_cluster_gives_up_is_submitted_again_elsewhere(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *python(COUNT))
    job.until("checkpoint")
    first_id, node = job.slurm_id, node_of(lab, job)
    lab.ask("scontrol", "update", f"jobid={first_id}", "requeue=0")
    lab.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    lab.ask("scontrol", "update", f"nodename={node}", "state=resume")  # at once: it must be avoided all the same
    assert job.outcome().completed
    assert sacct(lab, first_id) == "NODE_FAIL"
    assert job.slurm_id != first_id
    first, second = (tmp_path / "job" / "log").read_text().splitlines()
    assert (first, second.split()[0]) == (f"{node} from 0", "n2" if node == "n1" else "n1")
    assert int(second.split()[-1]) > 0
    said = (tmp_path / "job" / "stderr.log").read_text()
    assert f"nightjar: {first_id} ended with NODE_FAIL on {node}: resubmitting" in said


def test_a_job_that_loses_every_node_ends_with_that_name(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", "sleep", "100")
    seen: list[str] = []
    for _ in range(4):
        wait_for(lambda: job.slurm_id not in seen)
        node = node_of(lab, job)
        seen.append(job.slurm_id)
        lab.ask("scontrol", "update", f"jobid={job.slurm_id}", "requeue=0")
        lab.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        lab.ask("scontrol", "update", f"nodename={node}", "state=resume")
    outcome = job.outcome()
    assert outcome.state == "killed"
    assert f"Slurm job {seen[-1]} ended with NODE_FAIL on n" in (outcome.message or "")
    assert "submitted 4 times" in (outcome.message or "")


def test_accounts_that_go_away_and_come_back_lose_no_job(lab: Lab, tmp_path: Path) -> None:
    assert lab.accounts is not None
    log = lab.folder / "log" / "slurmdbd.log"
    job = Running(tmp_path / "job", *python(COUNT))
    job.until("checkpoint")
    lab.accounts.stop_slurmdbd()
    try:
        asked = subprocess.run(["sacct"], env=os.environ, capture_output=True, text=True, check=False, timeout=60)
        assert asked.returncode != 0
        assert job.outcome().completed
        assert run(tmp_path / "meanwhile", "sh", "-c", "exit 3").exit_code == 3
    finally:
        lab.accounts.start_slurmdbd()
    assert "started" in log.read_text()
    wait_for(lambda: sacct(lab, job.slurm_id) == "COMPLETED")
    assert run(tmp_path / "after", "true").completed
