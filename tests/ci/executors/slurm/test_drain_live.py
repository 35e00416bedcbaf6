"""Drained nodes of a real Slurm cluster: their jobs restart on other nodes."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nightjar_ci.executors import Task
from nightjar_ci.executors.slurm.executor import SlurmExecutor
from nightjar_ci.executors.slurm.slurm_job import STATE_FILE
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from tests.ci.executors.slurm.jobs import COUNT, Running, wait_for
from tests.ci.executors.slurm.lab import Lab, running_lab
from tests.ci.jobs import HERE, make_job, python
from tests.machine import asks

pytestmark = pytest.mark.slurm

WHOLE_NODE = Resources(cpus_per_task=len(os.sched_getaffinity(0)))
# Counts on the first node alone, and on the others as long.
TOGETHER = ("sh", "-c", '[ "$SLURM_PROCID" = 0 ] || exec sleep 3; exec "$@"', "sh", *python(COUNT))
# Writes a checkpoint when it is asked to end, and at no other time.
ASKED = """
import os, pathlib, signal, sys, time
out = pathlib.Path(os.environ["NIGHTJAR_OUT"])
mark = out / "checkpoint"
def leave(*_):
    mark.write_text(os.environ["SLURMD_NODENAME"])
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(out / "log").open("a").write("started" + chr(10))
time.sleep(0 if mark.exists() else 60)
"""


@pytest.fixture(scope="module")
@asks("slurm")
def cluster() -> Iterator[Lab]:
    with running_lab(3) as lab:
        yield lab


@pytest.fixture
def lab(cluster: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setattr("nightjar_ci.executors.slurm.executor._LONGEST_S", 1.0)  # jobs of seconds: ask as often
    wait_for(lambda: set(cluster.node_states().values()) == {"idle"})
    return cluster


@contextmanager
def drained(lab: Lab, *nodes: str) -> Iterator[None]:
    """Nodes are drained while the context lives."""
    lab.ask("scontrol", "update", f"nodename={','.join(nodes)}", "state=drain", "reason=bad ECC")
    try:
        yield
    finally:
        lab.ask("scontrol", "update", f"nodename={','.join(nodes)}", "state=resume")


def attempts(folder: Path) -> list[tuple[str, int]]:
    """On which node, and from which count, each attempt of COUNT began."""
    return [(line.split()[0], int(line.split()[-1])) for line in (folder / "log").read_text().splitlines()]


def moves(folder: Path) -> list[str]:
    return list(json.loads((folder / STATE_FILE).read_text())["moves"])


def test_a_cell_goes_on_from_its_checkpoint_when_its_node_is_drained(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *python(COUNT))
    job.until("checkpoint")
    slurm_id, node = job.slurm_id, job.until("log").split()[0]
    with drained(lab, node):
        assert job.outcome().completed
        assert lab.node_states()[node] == "drained"
    (first, start), (second, again) = attempts(tmp_path / "job")
    assert (first, start) == (node, 0)
    assert second != node
    assert 0 < again < 12
    assert (tmp_path / "job" / "checkpoint").read_text() == "12"
    assert job.slurm_id == slurm_id  # Slurm's own requeue, and not a second job
    assert moves(tmp_path / "job") == [f"node {node} was drained (bad ECC)"]
    said = f"nightjar: node {node} was drained (bad ECC): {slurm_id} restarts on other nodes"
    assert said in (tmp_path / "job" / "stderr.log").read_text()
    assert f"nightjar: restart 1, on {second}" in job.lines


def test_a_program_may_write_its_checkpoint_when_it_is_asked_to_leave(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *python(ASKED))
    job.until("log")
    node = lab.ask("squeue", "--noheader", "--format=%N", f"--jobs={job.slurm_id}").strip()
    with drained(lab, node):
        assert job.outcome().completed
    assert (tmp_path / "job" / "checkpoint").read_text() == node
    assert (tmp_path / "job" / "log").read_text() == "started\n" * 2


def test_a_job_of_two_nodes_leaves_both_when_one_is_drained(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *TOGETHER, resources=Resources(nodes=2))
    job.until("checkpoint")
    with drained(lab, "n2"):  # its second
        assert job.outcome().completed
    (first, start), (_, again) = attempts(tmp_path / "job")
    assert (first, start) == ("n1", 0)
    assert again > 0
    assert moves(tmp_path / "job") == ["node n2 was drained (bad ECC)"]
    assert "nightjar: restart 1, on n[1,3]" in (tmp_path / "job" / "stderr.log").read_text()


def test_of_an_array_only_what_runs_on_the_drained_node_moves(lab: Lab, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    tasks = []
    for folder in folders:
        folder.mkdir()
        job = make_job(*python(COUNT), executor="slurm", id=f"j{folder.name}", resources=WHOLE_NODE)
        tasks.append(Task(job, HERE, folder))
    ends: dict[str, Outcome] = {}

    thread = threading.Thread(
        target=lambda: SlurmExecutor().run_many(tasks, lambda task, end: ends.update({task.job.id: end})), daemon=True
    )
    thread.start()
    wait_for(lambda: all((folder / "checkpoint").exists() for folder in folders))
    node = attempts(folders[1])[0][0]
    with drained(lab, node):
        thread.join(120)
    assert [ends[name].state for name in ("ja", "jb")] == ["completed"] * 2
    assert len(attempts(folders[0])) == 1
    assert [start > 0 for _, start in attempts(folders[1])] == [False, True]
    assert node not in (attempts(folders[0])[0][0], attempts(folders[1])[1][0])
    assert moves(folders[0]) == []


def test_a_job_waits_and_says_so_while_every_node_is_drained(lab: Lab, tmp_path: Path) -> None:
    job = Running(tmp_path / "job", *python(COUNT))
    job.until("checkpoint")
    slurm_id, log = job.slurm_id, tmp_path / "job" / "stderr.log"
    with drained(lab, *lab.nodes):
        wait_for(
            lambda: f"nightjar: {slurm_id} is pending: Nodes required for job are DOWN, DRAINED" in log.read_text()
        )
        assert not job.ended
    assert job.outcome().completed
    assert len(attempts(tmp_path / "job")) == 2
    assert log.read_text().count("restarts on other nodes") == 1
