"""Several processes find each other, say who is missing, and continue bit for bit after one was killed."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nightjar_models.errors import ClusterError, InputError, NightjarError
from nightjar_models.parallel.distributed import Cluster, find_cluster, meet
from tests.models.conftest import QUICK_FLAGS, SMALL_OPTIONS, Command, keep_isa

SRUN = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def meet_all(*clusters: Cluster, timeout_s: float = 10.0) -> list[NightjarError | None]:
    """What each of these processes, here threads, meets with."""
    errors: list[NightjarError | None] = [None] * len(clusters)

    def run(index: int) -> None:
        try:
            meet(clusters[index], timeout_s)
        except NightjarError as error:
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(clusters))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def member(port: int, process_id: int, processes: int = 3) -> Cluster:
    return Cluster(coordinator=f"127.0.0.1:{port}", processes=processes, process_id=process_id)


def of_jax(coordinator: str | None, processes: int | None, process_id: int | None) -> dict[str, str]:
    values = {"JAX_COORDINATOR_ADDRESS": coordinator, "JAX_NUM_PROCESSES": processes, "JAX_PROCESS_ID": process_id}
    return {name: str(value) for name, value in values.items() if value is not None}


def test_variables_of_jax_name_a_cluster() -> None:
    expected = Cluster(coordinator="node1:1234", processes=2, process_id=1)
    assert find_cluster({**SRUN, **of_jax("node1:1234", 2, 1)}) == expected
    assert find_cluster({}) is None
    assert find_cluster({**SRUN, **of_jax(None, 1, None)}) is None


def test_srun_names_a_cluster_and_the_gpu_of_each_process() -> None:
    expected = Cluster(coordinator="gpu07:61538", processes=4, process_id=3, local_device=1)
    assert find_cluster(SRUN) == expected
    bound = find_cluster({**SRUN, "CUDA_VISIBLE_DEVICES": "1"})
    assert bound is not None
    assert bound.local_device is None
    alone = find_cluster({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "1(x4)"})
    assert alone is not None
    assert alone.local_device is None
    assert find_cluster({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (of_jax("node1:1", None, None), "^JAX_COORDINATOR_ADDRESS=node1:1: expected JAX_COORDINATOR_ADDRESS, JAX_NUM_"),
        (of_jax(None, 2, 1), "^JAX_NUM_PROCESSES=2, JAX_PROCESS_ID=1: expected JAX_COORDINATOR_ADDRESS"),
        ({**of_jax("node1:1", 2, 1), "JAX_PROCESS_ID": "one"}, "two of them numbers"),
        (of_jax("node1", 2, 1), "expected HOST:PORT"),
        (of_jax("node1:99999", 2, 1), "expected HOST:PORT"),
        (of_jax("node1:1", 2, 2), "expected less than JAX_NUM_PROCESSES"),
    ],
)
def test_wrong_variables_are_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_cluster(variables)


def test_devices_are_shared_out_evenly_or_refused() -> None:
    assert member(1, 0).share(6) == 2
    with pytest.raises(InputError, match="8 devices cannot be divided evenly among 3 processes"):
        member(1, 0).share(8)


def test_three_processes_meet_though_a_stranger_knocks() -> None:
    port = free_port()
    knocks = threading.Thread(target=knock, args=(port,))
    knocks.start()
    assert meet_all(*(member(port, index) for index in range(3))) == [None, None, None]
    knocks.join()


def knock(port: int) -> None:
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return
        except OSError:
            time.sleep(0.01)


def test_the_missing_process_is_named() -> None:
    port = free_port()
    first, last = meet_all(member(port, 0), member(port, 2), timeout_s=1.0)
    assert "of 3 processes [1] did not connect" in str(first)
    assert "process 2 could not join" in str(last)


def test_an_absent_coordinator_and_an_unknown_host_are_errors() -> None:
    (absent,) = meet_all(member(free_port(), 1), timeout_s=1.0)
    assert isinstance(absent, ClusterError)
    assert "Connection refused" in str(absent)
    with pytest.raises(ClusterError, match=r"nohost\.invalid:1234: the host's name cannot be resolved"):
        meet(Cluster(coordinator="nohost.invalid:1234", processes=2, process_id=1), timeout_s=5.0)


def test_processes_that_disagree_are_told_so() -> None:
    port = free_port()
    errors = meet_all(member(port, 0, 2), member(port, 1, 3), timeout_s=1.0)
    assert "process 0 has JAX_NUM_PROCESSES=2, this one 3" in str(errors[1])
    errors = meet_all(member(port, 0), member(port, 1), member(port, 1), timeout_s=1.0)
    assert any("another process has JAX_PROCESS_ID=1" in str(error) for error in errors)


def test_a_taken_port_is_an_error() -> None:
    with socket.create_server(("", 0)) as server:
        (error,) = meet_all(member(server.getsockname()[1], 0), timeout_s=1.0)
    assert "cannot be used: Address already in use" in str(error)


def test_an_absent_coordinator_ends_the_command_with_3(nightjar_models: Command, tmp_path: Path) -> None:
    variables = of_jax("nohost.invalid:1", 2, 1)
    answer = nightjar_models("train", "gpt_tiny", "--mesh", "dp2", "--out", "out", **variables)
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr.startswith("error: coordinator nohost.invalid:1: the host's name cannot be resolved")
    answer = nightjar_models("train", "gpt_tiny", "--mesh", "dp3", "--out", "out", **variables)
    assert answer.returncode == 2
    assert "3 devices cannot be divided evenly among 2 processes" in answer.stderr


def start_processes(folder: Path, number: int, *options: str, **variables: str) -> list[subprocess.Popen[str]]:
    """Processes with a device each that train together; their reports go to `0.log` and so on."""
    port = free_port()
    program = [str(Path(sys.executable).parent / "nightjar-models"), "train", "gpt_tiny", *SMALL_OPTIONS]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | variables
    environment |= keep_isa(variables.get("XLA_FLAGS", ""))
    started = []
    for index in range(number):
        own = environment | (of_jax(f"127.0.0.1:{port}", number, index) if number > 1 else {})
        command = [*program, *options, "--mesh", f"dp{number}", "--out", "out"]
        with (folder / f"{index}.log").open("w") as log:
            started.append(subprocess.Popen(command, cwd=folder, env=own, stdout=log, stderr=log, text=True))
    return started


def wait_for_line(process: subprocess.Popen[str], log: Path, line: str) -> None:
    while line not in log.read_text() and process.poll() is None:
        time.sleep(0.02)


def saved_steps(checkpoints: Path) -> list[int]:
    return sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isdigit())


def check_stopped(folder: Path, processes: int, number: int) -> None:
    """What processes that were stopped by SIGTERM say, once in all, and the checkpoint that they leave."""
    logs = [(folder / f"{index}.log").read_text() for index in range(processes)]
    (message,) = {line for log in logs for line in log.splitlines() if line.startswith("error: received SIGTERM")}
    last = saved_steps(folder / "out" / "checkpoints")[-1]
    assert message == f"error: received SIGTERM; stopped after step {last} of {number}."


@pytest.mark.weekly
@pytest.mark.timeout(1500)
def test_after_a_kill_at_a_random_step_and_a_sigterm_the_losses_are_those_of_an_uninterrupted_run(
    tmp_path: Path, compiled: dict[str, str]
) -> None:
    steps, log, checkpoints = (
        ["--steps", "200", "--checkpoint-every", "27"],
        tmp_path / "0.log",
        tmp_path / "out/checkpoints",
    )
    quickly = {"XLA_FLAGS": f"--xla_backend_optimization_level=0 {QUICK_FLAGS}"}
    pair = start_processes(tmp_path, 2, *steps, **compiled, **quickly)
    wait_for_line(pair[0], log, "step 40/200")
    while not saved_steps(checkpoints) and pair[0].poll() is None:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 0.3))
    pair[1].send_signal(signal.SIGKILL)
    codes = [process.wait(120) for process in pair]
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, None), log.read_text()
    assert not (tmp_path / "out" / "result.json").exists()

    pair = start_processes(tmp_path, 2, *steps, **quickly)  # which compiles the step anew, as after most failures
    wait_for_line(pair[0], log, "step 100/200")  # the steps that are left, of 20 ms, let the signal arrive in time
    pair[1].send_signal(signal.SIGTERM)  # to one of them alone
    assert [process.wait(300) for process in pair] == [143, 143], log.read_text()
    assert "step 20/200" not in log.read_text()  # it did continue
    check_stopped(tmp_path, 2, 200)

    pair = start_processes(tmp_path, 2, *steps, **compiled, **quickly)
    assert [process.wait(300) for process in pair] == [0, 0], log.read_text()
    assert "step 100/200" not in log.read_text()
    resumed = json.loads((tmp_path / "out" / "result.json").read_text())

    whole = tmp_path / "whole"
    whole.mkdir()
    assert [process.wait(300) for process in start_processes(whole, 2, *steps, **compiled, **quickly)] == [0, 0]
    uninterrupted = json.loads((whole / "out" / "result.json").read_text())
    assert resumed["curves"][0]["steps"] == list(range(200))
    assert [curve["values"] for curve in resumed["curves"]] == [curve["values"] for curve in uninterrupted["curves"]]
    assert resumed["facts"] == uninterrupted["facts"]
    assert resumed["facts"][0]["collectives"]["all-reduce"]["count"] > 0


@pytest.mark.slow
def test_sigterm_saves_the_step_and_the_same_command_goes_on(tmp_path: Path, compiled: dict[str, str]) -> None:
    # A step takes 3 ms: those that are left let the signal arrive in time.
    steps, log = ["--steps", "1000", "--checkpoint-every", "100000"], tmp_path / "0.log"
    (process,) = start_processes(tmp_path, 1, *steps, **compiled)
    wait_for_line(process, log, "step 100/1000")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143, log.read_text()
    check_stopped(tmp_path, 1, 1000)
    assert len(saved_steps(tmp_path / "out" / "checkpoints")) == 1

    (process,) = start_processes(tmp_path, 1, *steps, **compiled)
    assert process.wait(300) == 0, log.read_text()
    assert "step 100/1000" not in log.read_text()  # it did go on
    (loss, *_) = json.loads((tmp_path / "out" / "result.json").read_text())["curves"]
    assert loss["steps"] == list(range(1000))


@pytest.mark.slow
def test_without_checkpoints_sigterm_ends_a_run_at_once(tmp_path: Path, compiled: dict[str, str]) -> None:
    (process,) = start_processes(tmp_path, 1, "--steps", "10000", **compiled)
    wait_for_line(process, tmp_path / "0.log", "step 1000/")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == -signal.SIGTERM
