"""Drained nodes: parsing, and moving jobs away, with shell scripts in place of Slurm's commands."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.executors.slurm.drain import expand_nodes, explain_drain, read_drained
from nightjar_ci.executors.slurm.executor import SlurmExecutor
from nightjar_ci.executors.slurm.slurm_job import STATE_FILE
from nightjar_ci.settings import read_settings
from tests.ci.executors.slurm.jobs import Running, wait_for

# Of Slurm 22.05: three nodes in two partitions, of which two are drained and one of these is idle.
SINFO = """\
n1|draining|bad | ECC on bank 3
n1|draining|bad | ECC on bank 3
n3|drained*|second
n3|drained*|second
"""
PENDING = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
SHOWN = (
    "JobId=7 JobName=job.sh UserId=root(0) GroupId=root(0) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:01 TimeLimit=00:01:00 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2"
)
REFUSED = "echo 'Requested operation is presently disabled for job 7' >&2; exit 1"


def test_nodes_are_drained_by_any_spelling_of_it() -> None:
    assert read_drained(SINFO) == {"n1": "bad | ECC on bank 3", "n3": "second"}
    states = (
        "draining@",
        "draining$",
        "drained",
        "drained~",
        "fail",
        "failing*",
        "idle",
        "mixed",
        "down*",
        "allocated",
    )
    found = read_drained("".join(f"n{number}|{state}|none\n" for number, state in enumerate(states)))
    assert list(found) == ["n0", "n1", "n2", "n3", "n4", "n5"]
    assert read_drained("") == {}


def test_a_job_leaves_for_each_of_its_nodes_and_for_no_other() -> None:
    drained = read_drained(SINFO)
    assert explain_drain("n[1-3]", drained) == (
        "node n1 was drained (bad | ECC on bank 3), node n3 was drained (second)"
    )
    assert explain_drain("n[2,4-12]", drained) == ""
    assert explain_drain("", drained) == ""


@given(st.lists(st.integers(0, 120), min_size=1, unique=True), st.sampled_from(["n", "gpu-a", "r1-n"]))
def test_every_node_of_a_list_is_found(numbers: list[int], prefix: str) -> None:
    ranges = ",".join(f"{one:03}" if one % 2 else f"{one:03}-{one:03}" for one in numbers)
    assert expand_nodes(f"login,{prefix}[{ranges}].x") == ["login", *(f"{prefix}{one:03}.x" for one in numbers)]


def test_an_invalid_drain_setting_is_refused() -> None:
    assert read_settings({}).slurm_drain == "move"
    assert read_settings({"NIGHTJAR_SLURM_DRAIN": "stay"}).slurm_drain == "stay"
    with pytest.raises(InputError, match="expected move or stay, found 'no'"):
        read_settings({"NIGHTJAR_SLURM_DRAIN": "no"})


class Fake:
    """A cluster of shell scripts, on which job 7 runs on n1 and n2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put("AccountingStorageType = accounting_storage/none", "config")
        self.put(SHOWN, "job")
        self.put(SINFO, "nodes")
        self.put("7|RUNNING|0:05|n[1-2]|None", "queue")
        self.program("sbatch", "cat >/dev/null; echo 7")
        self.program("scancel", ":")
        self.program("sinfo", f"cat {folder}/nodes")
        self.program("squeue", f"cat {folder}/queue")
        self.requeue(f"echo '7|PENDING|0:00||{PENDING}' >{folder}/queue")

    def put(self, text: str, name: str) -> None:
        (self.folder / "new").write_text(f"{text}\n")
        (self.folder / "new").rename(self.folder / name)

    def program(self, name: str, text: str) -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.folder}/calls\n{text}\n')
        program.chmod(0o755)

    def requeue(self, text: str) -> None:
        show = f'"show config") cat {self.folder}/config;; "--oneliner show") cat {self.folder}/job;;'
        self.program("scontrol", f'case "$1 $2" in {show} *) {text};; esac')

    def calls(self, of: str) -> list[str]:
        calls = self.folder / "calls"
        return [line for line in calls.read_text().splitlines() if of in line] if calls.exists() else []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return Fake(tmp_path / "bin")


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], Running]:
    return lambda: Running(tmp_path / "job", "true", timeout_s=600)


Start = Callable[[], Running]


def log(job: Running) -> list[str]:
    path = job.folder / "stderr.log"
    return path.read_text().splitlines() if path.exists() else []


def test_a_requeued_job_logs_the_reason_and_why_it_is_pending(fake: Fake, start: Start) -> None:
    job = start()
    why = "node n1 was drained (bad | ECC on bank 3)"
    said = [f"nightjar: {why}: 7 restarts on other nodes", f"nightjar: 7 is pending: {PENDING}"]
    wait_for(lambda: log(job) == said)
    assert json.loads((job.folder / STATE_FILE).read_text()) == {"id": "7", "moves": [why], "leaving": False}
    assert len(fake.calls("requeue incomplete 7")) == 1
    wait_for(lambda: job.lines[-1:] == said[-1:])  # a progress bar hears of it, too
    job.stop()


def test_a_job_that_cannot_be_requeued_is_cancelled_and_resubmitted(fake: Fake, start: Start) -> None:
    fake.requeue(REFUSED)
    fake.program("scancel", f"echo '7|COMPLETING|0:05|n[1-2]|None' >{fake.folder}/queue")
    job = start()
    wait_for(lambda: fake.calls("scancel"))
    fake.program("sbatch", "cat >/dev/null; echo 8")
    assert len(fake.calls("sbatch")) == 1  # not while its processes may still write
    fake.put(SHOWN.replace("JobState=RUNNING", "JobState=CANCELLED"), "job")
    fake.put("7|CANCELLED|0:05|n[1-2]|None", "queue")
    wait_for(lambda: len(fake.calls("sbatch")) == 2)
    fake.put("8|RUNNING|0:01|n[4-5]|None", "queue")
    wait_for(lambda: job.slurm_id == "8")
    assert log(job)[1:] == ["nightjar: 7 ended with CANCELLED on n[1-2]: resubmitting"]
    fake.put("8|CANCELLED|0:09|n[4-5]|None", "queue")  # by somebody else, this time
    fake.put(SHOWN.replace("JobState=RUNNING", "JobState=CANCELLED"), "job")
    outcome = job.outcome()
    assert outcome.state == "killed"
    assert "submitted 2 times, moved as node n1 was drained (bad | ECC on bank 3)" in (outcome.message or "")


def test_a_job_at_its_restart_limit_is_not_requeued(fake: Fake, start: Start) -> None:
    fake.put(SHOWN.replace("Restarts=0", "Restarts=3"), "job")
    job = start()
    stays = "nightjar: node n1 was drained (bad | ECC on bank 3): 7 not requeued: restart limit (3) reached"
    wait_for(lambda: log(job) == [stays])
    asked = len(fake.calls("squeue"))
    wait_for(lambda: len(fake.calls("squeue")) > asked + 1)
    assert log(job) == [stays]
    assert len(fake.calls("sinfo")) == 1
    assert fake.calls("requeue") == []
    job.stop()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job", SHOWN.replace("JobState=RUNNING", "JobState=COMPLETING")),
        ("job", SHOWN.replace("NodeList=n[1-2]", "NodeList=n[4-5]")),  # accounts lag: it has left by now
        ("nodes", "n3|drained|second"),
        ("nodes", ""),
    ],
)
def test_a_job_that_ends_or_that_is_elsewhere_is_left_alone(fake: Fake, start: Start, name: str, text: str) -> None:
    fake.put(text, name)
    job = start()
    wait_for(lambda: len(fake.calls("sinfo")) >= 2)
    assert log(job) == []
    assert fake.calls("requeue") == []
    job.stop()


def test_a_job_that_has_ended_by_itself_is_left_alone(fake: Fake, start: Start) -> None:
    fake.put("7|PENDING|0:00||Priority", "queue")
    job = start()
    (job.folder / "slurm.exit").write_text("0 10.0 12.0")
    fake.put("7|RUNNING|0:05|n[1-2]|None", "queue")
    wait_for(lambda: len(fake.calls("sinfo")) >= 2)
    assert fake.calls("requeue") == []
    job.stop()


def test_a_cluster_that_shows_no_nodes_is_no_failure(fake: Fake, start: Start) -> None:
    fake.program("sinfo", "echo 'slurm_load_node error: Access/permission denied' >&2; exit 1")
    job = start()
    wait_for(lambda: len(fake.calls("sinfo")) >= 2)
    assert not job.ended
    job.stop()


def test_jobs_may_end_on_drained_nodes(fake: Fake, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_SLURM_DRAIN", "stay")
    job = start()
    wait_for(lambda: len(fake.calls("squeue")) >= 2)
    assert fake.calls("sinfo") == []
    job.stop()


def test_a_resumed_night_knows_why_its_job_was_moved(fake: Fake, start: Start, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / STATE_FILE).write_text('{"id": "7", "moves": ["node n9 was drained (old)"]}')
    job = start()
    wait_for(lambda: fake.calls("requeue"))
    wait_for(lambda: len(json.loads((job.folder / STATE_FILE).read_text())["moves"]) == 2)
    assert fake.calls("sbatch") == []
    assert SlurmExecutor().under_way(job.folder)
    job.stop()


def test_a_night_killed_after_it_cancelled_a_job_submits_it_again(fake: Fake, start: Start, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / STATE_FILE).write_text('{"id": "7", "moves": ["node n1 was drained (x)"], "leaving": true}')
    fake.put(SHOWN.replace("JobState=RUNNING", "JobState=CANCELLED"), "job")
    fake.put("7|CANCELLED|0:05|n[1-2]|None", "queue")
    fake.program("sbatch", f"cat >/dev/null; echo '8|RUNNING|0:01|n[4-5]|None' >{fake.folder}/queue; echo 8")
    job = start()
    wait_for(lambda: job.slurm_id == "8")
    assert json.loads((job.folder / STATE_FILE).read_text())["leaving"] is False
    assert len(fake.calls("sbatch")) == 1
    job.stop()
