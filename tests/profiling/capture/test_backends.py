"""Which profiler is chosen, the command line of nsys, and folders by rank."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightjar_profiling.capture.backends import Backend, choose_backend, has_gpu, render_nsys
from nightjar_profiling.capture_folder.ranks import find_rank
from nightjar_profiling.errors import CaptureError
from tests.places import FAKES
from tests.profiling.capture.test_capture import STEPS
from tests.profiling.conftest import Run


@pytest.fixture
def variables(variables: dict[str, str]) -> dict[str, str]:
    return {**variables, "PATH": f"{FAKES}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("wanted", "nsys", "gpu", "backend", "reason"),
    [
        (Backend.AUTO, "/bin/nsys", True, Backend.NSYS, "Nsight Systems (found, with a GPU)"),
        (Backend.AUTO, "/bin/nsys", False, Backend.JAX, "JAX's profiler (no GPU found)"),
        (Backend.AUTO, None, True, Backend.JAX, "JAX's profiler (no nsys found)"),
        (Backend.AUTO, None, False, Backend.JAX, "JAX's profiler (neither nsys nor a GPU found)"),
        (Backend.JAX, "/bin/nsys", True, Backend.JAX, "JAX's profiler (as asked)"),
        (Backend.NSYS, "/bin/nsys", False, Backend.NSYS, "Nsight Systems (as asked)"),
    ],
)
def test_auto_takes_nsys_with_a_gpu(
    wanted: Backend, nsys: str | None, gpu: bool, backend: Backend, reason: str
) -> None:
    choice = choose_backend(wanted, nsys, gpu)
    assert (choice.backend, choice.reason) == (backend, reason)
    assert (choice.program is None) == (backend is Backend.JAX)


def test_nsys_that_is_asked_for_and_absent_is_an_error() -> None:
    with pytest.raises(CaptureError, match=r"there is no `nsys` here\. Hint: install Nsight Systems"):
        choose_backend(Backend.NSYS, None, True)


def test_a_gpu_is_a_device_file_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert not has_gpu(tmp_path)
    (tmp_path / "dev" / "nvidia0").touch()
    assert has_gpu(tmp_path)


def test_the_command_line_of_nsys() -> None:
    whole = render_nsys("/opt/nsys", Path("/out/raw/rank0000"), None, ["python", "train.py", "--lr", "1"])
    assert whole == [
        "/opt/nsys", "profile", "--output=/out/raw/rank0000", "--force-overwrite=true", "--trace=cuda,nvtx",
        "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none", "--stats=false", "--wait=all",
        "python", "train.py", "--lr", "1",
    ]  # fmt: skip
    steps = render_nsys("/opt/nsys", Path("/out/raw/rank0000"), (3, 5), ["python"])
    assert steps[-3:] == ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "python"]


def test_under_nsys_hlo_is_dumped_and_flags_stay(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    program = "import jax, os; jax.compute(); print(os.environ['XLA_FLAGS']); raise SystemExit(9)"
    arguments = ("--backend", "nsys", "--out", "c", "--", sys.executable, "-c", program)
    done = run_command("capture", *arguments, XLA_FLAGS="--xla_mine=1", **variables)
    assert done.returncode == 9
    assert "tracing the whole run with Nsight Systems (as asked)" in done.stderr
    flags = done.stdout.splitlines()[0].split()
    assert flags[0].startswith(f"--xla_dump_to={tmp_path}/c/.nightjar-new-")
    assert flags[1:] == ["--xla_dump_hlo_as_proto", "--xla_mine=1"]
    report = (tmp_path / "c" / "raw" / "rank0000.nsys-rep").read_text().splitlines()
    new = flags[0].removeprefix("--xla_dump_to=").rpartition("/")[0]
    assert report[:2] == ["profile", f"--output={new}/rank0000"]
    assert report[-3:] == [sys.executable, "-c", program]
    assert json.loads((tmp_path / "c" / "manifest.json").read_text())["backend"] == "nsys"


def test_under_nsys_the_users_dump_is_copied(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    program = """
import jax, os, pathlib
jax.compute()
print(os.environ["XLA_FLAGS"])
for name in ("module_0007.jit_f.gpu_after_optimizations.hlo.pb", "module_0007.jit_f.before_optimizations.txt"):
    pathlib.Path("mine", name).write_text("now")
"""
    old = tmp_path / "mine" / "module_0003.jit_old.gpu_after_optimizations.hlo.pb"
    old.parent.mkdir()
    old.write_text("of an earlier run")
    os.utime(old, (1, 1))
    arguments = ("--backend", "nsys", "--out", "c", "--", sys.executable, "-c", program)
    done = run_command("capture", *arguments, XLA_FLAGS="--xla_dump_to=mine", **variables)
    assert done.stdout.splitlines()[0] == "--xla_dump_hlo_as_proto --xla_dump_hlo_as_text --xla_dump_to=mine"
    copied = tmp_path / "c" / "raw" / "rank0000.dump"
    assert [path.name for path in copied.iterdir()] == ["module_0007.jit_f.gpu_after_optimizations.hlo.pb"]
    assert len(list(old.parent.iterdir())) == 3


def test_two_captures_at_a_time_are_refused(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "nightjar_profiling", "capture", "--out", "c", "--", sys.executable, "-c", STEPS]
    program = f"import subprocess; raise SystemExit(subprocess.run({inner!r}).returncode)"
    done = run_command("capture", "--out", "c", "--", sys.executable, "-c", program, **variables)
    assert done.returncode == 2
    assert "another process is writing a capture there" in done.stderr
    assert "nightjar-profiling merge" in done.stderr
    again = run_command("capture", "--out", "c", "--", sys.executable, "-c", STEPS, **variables)
    assert again.returncode == 0, again.stderr


def test_a_launchers_rank_has_a_folder_of_its_own(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    launched = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
    done = run_command("capture", "--out", "c", "--", sys.executable, "-c", STEPS, **variables, **launched)
    folder = tmp_path / "c" / "rank0003"
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")
    assert json.loads((folder / "manifest.json").read_text())["environment"]["rank"] == 3
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["rank0003"]


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, outside srun
        ({"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "8"}, 7),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}, 1),
        ({"JAX_PROCESS_ID": "1"}, 1),  # each process knows its number, and the program knows how many there are
        ({"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1"}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "many"}, None),
    ],
)
def test_the_rank_is_the_launchers(environ: dict[str, str], rank: int | None) -> None:
    assert find_rank(environ) == rank


def test_child_processes_become_ranks_of_it(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    child = f"import subprocess, sys; [subprocess.run([sys.executable, '-c', {STEPS!r}]) for _ in range(2)]"
    done = run_command("capture", "--steps", "1:2", "--", sys.executable, "-c", child, **variables)
    assert done.returncode == 0
    assert sorted(path.name for path in (tmp_path / "capture" / "raw").iterdir()) == [
        f"rank000{rank}.{suffix}" for rank in (0, 1) for suffix in ("host", "sources", "xplane.pb")
    ]
    assert json.loads((tmp_path / "capture" / "profile.json").read_text())["device_time_ns"] == 200


def start(folder: Path, program: str, backend: str = "auto", path: str | None = None) -> subprocess.Popen[str]:
    """A capture of a program, once that has said `ready`; in a session of its own, as a batch system starts it."""
    command = [sys.executable, "-m", "nightjar_profiling", "capture", "--backend", backend, "--out", str(folder), "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "PATH": path or os.environ["PATH"]},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    return process


SIGNALLED = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: sys.exit(40 + number))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("backend", "number"),
    [("jax", signal.SIGINT), ("jax", signal.SIGTERM), ("nsys", signal.SIGTERM), ("nsys", signal.SIGUSR1)],
)
def test_a_signal_reaches_the_program_and_not_the_profiler(
    tmp_path: Path, backend: str, number: signal.Signals
) -> None:
    with start(tmp_path / "c", SIGNALLED, backend, f"{FAKES}:{os.environ['PATH']}") as process:
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 40 + number
    left = tmp_path / "c" / "raw"
    assert backend == "jax" or [path.name for path in left.iterdir()] == ["rank0000.nsys-rep"]


def test_a_killed_capture_looks_like_none_and_can_be_made_again(
    run_command: Run, variables: dict[str, str], tmp_path: Path
) -> None:
    program = "import os, time; print('ready', flush=True); print(os.getpid(), flush=True); time.sleep(60)"
    with start(tmp_path / "c", program) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        os.kill(child, signal.SIGKILL)
        process.communicate(timeout=30)
    for command in ("report", "summary"):
        done = run_command(command, "c")
        assert done.returncode == 2
        assert "c: this capture was ended before its program was.\nHint: capture again" in done.stderr
    again = run_command("capture", "--out", "c", "--", sys.executable, "-c", STEPS, **variables)
    assert again.returncode == 0
    assert not list((tmp_path / "c").glob(".nightjar*"))
