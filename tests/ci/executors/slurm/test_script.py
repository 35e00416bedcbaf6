"""The batch script, as text and run by bash, and the parsers of Slurm's output. No test here needs a cluster."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_ci.cli import make_app
from nightjar_ci.errors import ExecutorError
from nightjar_ci.executors.base import Task
from nightjar_ci.executors.slurm import cluster
from nightjar_ci.executors.slurm.cluster import Cluster, JobState, read_sacct, read_scontrol, read_squeue
from nightjar_ci.executors.slurm.executor import judge_slurm_end, read_exit
from nightjar_ci.executors.slurm.script import BatchSpec, Cell, name_for_pyxis, render_batch
from nightjar_ci.executors.slurm.slurm_job import append_log_line, prepare
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from tests.ci.jobs import HERE, make_job
from tests.stand_ins import write_programs

TRAIN = ("nightjar-models", "train", "gpt_tiny", "--set", "text=it's here", "--out", "/nights/n/jobs/gpt-s0")
CELL = Cell(folder="/nights/n/jobs/gpt-s0", command=TRAIN, variables={"NIGHTJAR_SEED": "0", "A": "$HOME `x`"})
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'

Golden = Callable[[str, str], None]


def test_a_job_of_one_process(golden: Golden) -> None:
    golden("slurm-one.sh", render_batch("nightjar-gpt-s0", BatchSpec(resources=Resources(), timeout_s=300), [CELL]))


@pytest.mark.parametrize(
    ("timeout_s", "minutes"), [(0.5, 1), (60, 1), (60.1, 2), (90, 2), (119.5, 2), (120, 2), (121, 3)]
)
def test_slurms_own_limit_is_never_below_the_timeout(timeout_s: float, minutes: int) -> None:
    script = render_batch("x", BatchSpec(resources=Resources(), timeout_s=timeout_s), [CELL])
    assert f"#SBATCH --time={minutes}\n" in script


def test_a_job_of_two_nodes_with_gpus_in_a_container(golden: Golden) -> None:
    wanted = Resources(nodes=2, tasks_per_node=8, gpus_per_task=1, cpus_per_task=12, memory="900G")
    place = BatchSpec(
        resources=wanted,
        timeout_s=5400.5,
        image="ghcr.io/nightjar/models:2026-11-21",
        work="/src/jax",
        options=("--partition=h100", "--account=ml infra"),
    )
    cell = Cell(
        folder="/nights/n/jobs/gpt-s0",
        command=(*TRAIN[:-1], "/out"),
        variables={"NIGHTJAR_OUT": "/out", "NIGHTJAR_SEED": "0"},
    )
    golden("slurm-nodes.sh", render_batch("nightjar-gpt-s0", place, [cell], excluded=["n07"]))


def test_small_jobs_are_an_array(golden: Golden) -> None:
    cells = [
        Cell(folder=f"/nights/n/jobs/a {n}", command=("run", str(n)), variables={"NIGHTJAR_SEED": str(n)})
        for n in range(3)
    ]
    golden("slurm-array.sh", render_batch("nightjar-3-jobs", BatchSpec(resources=Resources(), timeout_s=60), cells))


@pytest.mark.parametrize(("task", "ids"), [(0, "0,1,2,3"), (1, "4,5,6,7")])
def test_a_task_is_told_all_of_its_gpus(task: int, ids: str, tmp_path: Path) -> None:
    command = ("sh", "-c", 'echo "$JAX_LOCAL_DEVICE_IDS $0 $1"', "a'b", "c d")
    cell = Cell(folder=str(tmp_path), command=command, variables={})
    resources = Resources(tasks_per_node=2, gpus_per_task=4)
    script = render_batch("x", BatchSpec(resources=resources, timeout_s=60), [cell])
    assert "#SBATCH --gpus-per-node=8\n" in script
    step = next(line for line in script.splitlines() if line.startswith("srun "))
    assert "--gpu-bind=none" in step
    write_programs(tmp_path, {"srun": SRUN})
    alone = [line for line in script.splitlines() if line.startswith(("  command=", "srun "))]
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_LOCALID": str(task)}
    done = subprocess.run(
        ["bash"], input="\n".join(alone), env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{ids} a'b c d\n"


def bash(tmp_path: Path, restarts: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of two cells with an srun that only runs its command."""
    write_programs(tmp_path / "bin", {"srun": SRUN})
    cells = []
    for number in range(2):
        folder = tmp_path / f"it's {number}"
        folder.mkdir(exist_ok=True)
        command = ("sh", "-c", 'echo "$WORD" "$0"; ${LEAVE:-true}; exit 3', f"a'b {number}")
        cells.append(Cell(folder=str(folder), command=command, variables={"WORD": "$(no) `no`"}))
    script = render_batch("x", BatchSpec(resources=Resources(), timeout_s=60, restarts=restarts), cells)
    environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash"], input=script, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_bash_runs_the_element_of_the_array_with_every_character_as_it_was(tmp_path: Path) -> None:
    ended = bash(tmp_path, SLURM_ARRAY_TASK_ID="1")
    assert (ended.returncode, ended.stderr) == (3, "")
    assert (tmp_path / "it's 1" / "stdout.log").read_text() == "$(no) `no` a'b 1\n"
    code, started, ended_at = (tmp_path / "it's 1" / "slurm.exit").read_text().split()
    assert code == "3"
    assert 0 <= float(ended_at) - float(started) < 60
    assert list((tmp_path / "it's 0").iterdir()) == []


def test_a_job_that_started_again_too_often_gives_up_and_says_so(tmp_path: Path) -> None:
    assert bash(tmp_path, restarts=2, SLURM_RESTART_COUNT="2", SLURM_JOB_NODELIST="n1").returncode == 3
    ended = bash(tmp_path, restarts=2, SLURM_RESTART_COUNT="3", SLURM_JOB_NODELIST="n1")
    assert ended.returncode == 75
    assert "giving up after 3 restarts (lost nodes, preemptions)" in (tmp_path / "it's 0" / "stderr.log").read_text()


def test_links_in_place_of_what_the_script_writes_are_replaced(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_text("as it was")
    folder = tmp_path / "it's 1"
    folder.mkdir()
    (folder / "stdout.log").symlink_to(host)
    os.mkfifo(folder / "stderr.log")
    ended = bash(tmp_path, SLURM_ARRAY_TASK_ID="1", LEAVE=f"ln -s {host} slurm.exit")
    assert ended.returncode == 3, ended.stderr
    assert host.read_text() == "as it was"
    assert read_exit(folder) is not None
    assert not any((folder / name).is_symlink() for name in ("stdout.log", "stderr.log", "slurm.exit"))


def test_a_slurm_id_that_the_job_forged_is_ignored(tmp_path: Path) -> None:
    task = Task(make_job("true"), HERE, tmp_path)
    for text, slurm_id in (("17", "17"), ("17_3", "17_3"), ("--user=root", ""), ("17 18", "")):
        (tmp_path / "slurm.json").write_text(json.dumps({"id": text}))
        assert (prepare(task).slurm_id, "NIGHTJAR_IMAGE" in prepare(task).cell.variables) == (slurm_id, False)
    assert prepare(task).spec.work == str(Path.cwd())


def test_a_link_in_place_of_a_log_is_neither_followed_nor_an_error(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_text("as it was")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "stderr.log").symlink_to(host)
    (tmp_path / "job" / "slurm.exit").symlink_to("/dev/zero")
    append_log_line(prepare(Task(make_job("true"), HERE, tmp_path / "job")), "moved")
    outcome = judge_slurm_end(
        make_job("true"),
        JobState(state="FAILED", exit_code=1),
        tmp_path / "job",
        cancelled=False,
        command=("true",),
        started_at="",
        slurm_id="1",
        submissions=1,
    )
    assert outcome.state == "failed"
    assert host.read_text() == "as it was"


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("localhost:5000/a/b:c", "localhost:5000#a/b:c"),
        ("nvcr.io/nvidia/jax@sha256:0", "nvcr.io#nvidia/jax:sha256:0"),
        ("localhost:5000/a:b@sha256:0", "localhost:5000#a:sha256:0"),
        ("nvidia/jax@sha256:0", "nvidia/jax:sha256:0"),
        ("./jax.sqsh", "./jax.sqsh"),
        ("debian", "debian"),
    ],
)
def test_an_image_is_named_as_pyxis_wants_it(image: str, named: str) -> None:
    assert name_for_pyxis(image) == named


def test_states_are_read_from_each_of_slurms_commands() -> None:
    accounts = read_sacct("1|COMPLETED|2|n1|0:0\n2_0|NODE_FAIL|61|n[1-2]|1:0\n2_[1-4]|PENDING|0|None assigned|0:0\n")
    assert accounts["1"] == JobState(state="COMPLETED", elapsed_s=2, nodes="n1", exit_code=0)
    assert (accounts["2_0"].state, accounts["2_0"].ended, "2_[1-4]" in accounts) == ("NODE_FAIL", True, False)
    queue = read_squeue("2_1|PENDING|0:00||Resources\n2_2|RUNNING|1-00:00:01|n3|None\n3|PENDING|0:00||BadConstraints\n")
    assert queue["2_2"] == JobState(state="RUNNING", elapsed_s=86401, nodes="n3")
    assert [queue[one].never_starts for one in ("2_1", "2_2", "3")] == [False, False, True]
    limits = (
        "QOSMaxGRESPerJob",
        "QOSMaxGRESPerUser",
        "AssocMaxWallDurationPerJobLimit",
        "Priority",
        "AccountNotAllowed",
    )
    waiting = [JobState(state="PENDING", reason=reason) for reason in limits]
    assert [state.never_starts for state in waiting] == [True, False, True, False, True]
    shown = "JobId=9 JobState=FAILED Reason=None RunTime=00:01:00 NodeList=(null) ExitCode=0:9 DerivedExitCode=0:0"
    assert read_scontrol(shown) == JobState(state="FAILED", elapsed_s=60, exit_code=137)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts shell scripts under the names of Slurm's commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, text: str) -> Path:
        write_programs(tmp_path, {name: f'#!/bin/sh\necho "$0 $*" >>{tmp_path}/calls\n{text}\n'})
        return tmp_path / "calls"

    return make


def test_accounts_are_asked_first_and_the_controller_for_what_they_lack(fake: Callable[[str, str], Path]) -> None:
    fake("scontrol", "echo 'AccountingStorageType = accounting_storage/slurmdbd'")
    fake("sacct", "echo '1|RUNNING|5|n1|0:0'")
    calls = fake("squeue", "echo '2|PENDING|0:00||Priority'")
    states = Cluster().states(["1", "2", "3"])
    assert {one: state.state for one, state in states.items()} == {"1": "RUNNING", "2": "PENDING"}
    assert "squeue --noheader --array --states=all" in calls.read_text()
    assert "--jobs=2,3" in calls.read_text()


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "REQUEUED", "PENDING"])
def test_a_requeued_job_that_accounts_report_as_lost_is_pending(fake: Callable[[str, str], Path], state: str) -> None:
    fake("scontrol", "echo 'AccountingStorageType = accounting_storage/slurmdbd'")
    fake("sacct", f"echo '1|{state}|5|n1|0:0'; echo '1.batch|CANCELLED|5|n1|0:15'")
    fake("squeue", "echo '1|PENDING|0:00||BeginTime'")
    found = Cluster().states(["1"])["1"]
    assert (found.state, found.reason, found.ended) == ("PENDING", "BeginTime", False)


def test_a_job_is_lost_when_the_controller_has_forgotten_it(fake: Callable[[str, str], Path]) -> None:
    fake("scontrol", "echo 'AccountingStorageType = accounting_storage/slurmdbd'")
    fake("sacct", "echo '1|NODE_FAIL|5|n1|0:0'")
    fake("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert Cluster().states(["1"])["1"] == JobState(state="NODE_FAIL", elapsed_s=5, nodes="n1", exit_code=0)


def test_silent_accounts_are_asked_less_often(
    fake: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("scontrol", "echo 'AccountingStorageType = accounting_storage/slurmdbd'")
    fake("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    calls = fake("squeue", "echo '1|RUNNING|0:05|n1|None'")
    clock = [1000.0]
    monkeypatch.setattr("nightjar_ci.executors.slurm.cluster.time.monotonic", lambda: clock[0])
    asked, states = Cluster(), []
    for _ in range(20):
        states.append(asked.states(["1"])["1"].state)
        clock[0] += 5
    said = [line.split()[0].rpartition("/")[2] for line in calls.read_text().splitlines()]
    assert set(states) == {"RUNNING"}
    assert (said.count("sacct"), said.count("squeue")) == (5, 20)  # at 0, 5, 15, 35 and 75 s
    fake("sacct", "echo '1|COMPLETED|60|n1|0:0'")
    clock[0] += 300
    assert asked.states(["1"])["1"].state == "COMPLETED"


def judge(tmp_path: Path, state: JobState, cancelled: bool = False, left: str = "", log: str = "") -> Outcome:
    if left:
        (tmp_path / "slurm.exit").write_text(left)
    (tmp_path / "stderr.log").write_text(log)
    job = make_job("true", executor="slurm", timeout_s=60)
    known = {"command": ("true",), "started_at": "2026-11-21T00:00:00Z", "slurm_id": "7", "submissions": 2}
    return judge_slurm_end(job, state, tmp_path, cancelled=cancelled, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("BOOT_FAIL", "killed"),
        ("CANCELLED", "killed"),
        ("DEADLINE", "timeout"),
        ("NODE_FAIL", "killed"),
        ("OUT_OF_MEMORY", "killed"),
        ("PREEMPTED", "killed"),
        ("REVOKED", "killed"),
        ("TIMEOUT", "timeout"),
    ],
)
def test_an_outcome_names_the_state_in_slurm(tmp_path: Path, name: str, outcome: str) -> None:
    found = judge(tmp_path, JobState(state=name, elapsed_s=9, nodes="n1"), log="the last words\n")
    assert found.state == outcome
    assert f"Slurm job 7 ended with {name} on n1 after 9.0 s, submitted 2 times" in (found.message or "")
    assert "the last words" in (found.message or "")


def test_a_job_that_fails_after_its_step_was_out_of_memory_was_out_of_memory(tmp_path: Path) -> None:
    log = "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes were killed\n"
    failed = JobState(state="FAILED", elapsed_s=2, nodes="n1", exit_code=1)
    found = judge(tmp_path, failed, left="1 10.0 12.0", log=log)
    assert (found.state, found.signal) == ("killed", "SIGKILL")
    assert "OUT_OF_MEMORY" in (found.message or "")
    assert judge(tmp_path, failed, left="1 10.0 12.0", log="no such file\n").state == "failed"


def test_a_folder_that_the_node_does_not_see_is_said_to_be_one(tmp_path: Path) -> None:
    found = judge(tmp_path, JobState(state="FAILED", nodes="n1", exit_code=128 + 53))
    assert (found.state, f"n1 cannot write {tmp_path}" in str(found.message)) == ("not_started", True)
    of_a_signal = judge(tmp_path, JobState(state="FAILED", nodes="n1", exit_code=137), left="137 10,0 12,5")
    assert (of_a_signal.state, of_a_signal.duration_s) == ("killed", 2.5)  # with the decimal comma of a locale


def test_a_job_that_ended_just_before_it_was_cancelled_is_in_time(tmp_path: Path) -> None:
    cancelled = JobState(state="CANCELLED", elapsed_s=61, nodes="n1", exit_code=0)
    assert judge(tmp_path, cancelled, cancelled=True).state == "timeout"
    assert judge(tmp_path, cancelled, cancelled=True, left="0 10.0 75.0").state == "timeout"  # it caught the signal
    assert judge(tmp_path, cancelled, cancelled=True, left="0 10.0 69.0").state == "completed"


def test_calls_are_retried_while_the_controller_restarts(fake: Callable[[str, str], Path], tmp_path: Path) -> None:
    busy = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    fake("sbatch", f"[ -e {tmp_path}/up ] || {{ touch {tmp_path}/up; echo '{busy}' >&2; exit 1; }}; echo '7;lab'")
    cancelled = fake("scancel", "exit 0")
    cluster = Cluster()
    assert cluster.submit("#!/bin/bash\n#SBATCH --job-name=mine\n") == "7"
    (line,) = [line for line in cancelled.read_text().splitlines() if "scancel" in line]
    assert "--name=mine-" in line  # it may have been taken although nobody said so
    assert cluster.environ["SLURM_CLUSTERS"] == "lab"


def test_an_absent_controller_is_a_failure(fake: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.1)
    fake("sbatch", "echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ExecutorError, match="has not answered for") as caught:
        Cluster().submit("#!/bin/bash\n")
    assert caught.value.exit_code == 3


def test_variables_of_an_allocation_around_us_do_not_reach_the_job(fake: Callable[[str, str], Path]) -> None:
    fake("sbatch", 'echo "$SLURM_NTASKS-$SLURM_CONF"')
    given = {"PATH": os.environ["PATH"], "SLURM_NTASKS": "8", "SLURM_CONF": "/etc/slurm.conf"}
    assert Cluster().submit("#!/bin/bash\n", given) == "-/etc/slurm.conf"


def test_a_folder_that_slurm_could_not_write_its_log_to_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = 'schema = "nightjar.matrix/1"\nname = "m"\n[[job]]\nname = "a"\ncommand = ["true"]\ntimeout_s = 60\n'
    (tmp_path / "matrix.toml").write_text(job)
    folder = tmp_path / "the out"
    command = ["render", "slurm", str(tmp_path / "matrix.toml"), "*", "--out", str(folder)]
    make_app("render")(command, standalone_mode=False)
    assert f"mkdir -p '{folder}'" in capsys.readouterr().err
    folder.mkdir()
    make_app("render")(command, standalone_mode=False)
    script, err = capsys.readouterr()
    assert err == ""
    assert f"cd {Path.cwd()} || exit 73\n" in script
