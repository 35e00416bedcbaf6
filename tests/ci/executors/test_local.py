"""Jobs as real processes: exit codes, signals, timeouts, and their messages."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightjar_ci.executors import process
from nightjar_ci.executors.local import LocalExecutor
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from tests.ci.jobs import HERE, make_job, python, wait_for
from tests.places import ROOT
from tests.stand_ins import put_on_path


def run(job: Job, folder: Path) -> Outcome:
    folder.mkdir(exist_ok=True)
    return LocalExecutor().run(job, HERE, folder)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_job_sees_its_environment_and_leaves_its_logs(tmp_path: Path) -> None:
    program = (
        "import os, sys; print(os.environ['NIGHTJAR_OUT'], os.environ['X'], sys.stdin.read() == '', file=sys.stderr)"
    )
    outcome = run(make_job(*python(program), "{out}", env={"X": "{out}/x"}), tmp_path)
    assert (outcome.state, outcome.exit_code, outcome.signal, outcome.message) == ("completed", 0, None, None)
    assert (tmp_path / "stderr.log").read_text().split() == [str(tmp_path), f"{tmp_path}/x", "True"]
    assert outcome.command[-1] == str(tmp_path)
    assert outcome.duration_s > 0


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_removes_its_folder_was_started(tmp_path: Path, code: int) -> None:
    program = f"import shutil, sys, time; shutil.rmtree(sys.argv[1]); time.sleep(1); sys.exit({code})"
    outcome = run(make_job(*python(program), "{out}"), tmp_path / "out")
    assert (outcome.state, outcome.exit_code) == (["completed", "failed"][code], code)


def test_commands_of_the_environment_come_first_on_path(tmp_path: Path) -> None:
    outcome = run(make_job("python", *python("import sys; print(sys.prefix)")[1:]), tmp_path)
    assert outcome.completed
    assert (tmp_path / "stdout.log").read_text().strip() == sys.prefix


def test_the_peak_memory_is_that_of_the_job(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from nightjar_ci.executors.process import run_process\n"
        "job = [sys.executable, '-c', 'x = bytearray(400_000_000)']\n"
        "print(run_process(job, os.environ, Path(sys.argv[1]), 60).peak_rss_bytes)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 400e6 < peak < 600e6


def test_the_peak_memory_of_a_job_smaller_than_ourselves_is_its_own(tmp_path: Path) -> None:
    ballast = b"x" * 200_000_000
    peak = run(make_job(*python("x = bytearray(50_000_000)")), tmp_path).peak_rss_bytes
    assert peak is not None
    assert 50e6 < peak < 150e6
    assert len(ballast) == 200_000_000


def test_a_job_stays_on_the_processor_that_it_is_pinned_to(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    program = "import os; print(sorted(os.sched_getaffinity(0)))"
    assert run(make_job(*python(program), resources=Resources(pinned_cpus=str(last))), tmp_path).completed
    assert (tmp_path / "stdout.log").read_text() == f"[{last}]\n"
    outcome = run(make_job(*python(program), resources=Resources(pinned_cpus="4000-4001")), tmp_path)
    assert outcome.state == "not_started"
    assert "Hint: check that this machine has the CPUs of resources.pinned_cpus, 4000-4001" in (outcome.message or "")


def test_a_crash_is_reported_with_exit_code_and_the_last_twenty_lines_of_stderr(tmp_path: Path) -> None:
    program = "import sys; [print('line', n, file=sys.stderr) for n in range(100)]; sys.exit(7)"
    outcome = run(make_job(*python(program)), tmp_path)
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("failed", 7, None)
    message = outcome.message or ""
    assert message.startswith("demo-s0: exit code 7 after ")
    assert "expected 0" in message
    assert "\nline 80\n" in message
    assert "\nline 79\n" not in message
    assert "Hint: " in message


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise KeyError('weights')", "KeyError: 'weights'"),
        ("import sys; sys.exit('error: xlb 0.3.1 with jax 0.10.2: no.\\nHint: none')", "xlb 0.3.1 with jax 0.10.2: no"),
    ],
)
def test_the_first_line_of_a_failure_says_why_where_the_log_does(tmp_path: Path, program: str, reason: str) -> None:
    first = (run(make_job(*python(program)), tmp_path).message or "").partition("\n")[0]
    assert f" s, expected 0: {reason}. The last lines of " in first


@pytest.mark.parametrize(
    ("name", "hint"),
    [("SIGKILL", "out of memory?"), ("SIGSEGV", "PYTHONFAULTHANDLER=1"), ("SIGBUS", "is /dev/shm full?")],
)
def test_a_signal_is_named(tmp_path: Path, name: str, hint: str) -> None:
    program = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    outcome = run(make_job(*python(program)), tmp_path)
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("killed", None, name)
    assert f"killed by {name}" in (outcome.message or "")
    assert hint in (outcome.message or "")


HANG = """
import pathlib, subprocess, sys, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60"])
pathlib.Path(sys.argv[1], "pid").write_text(str(child.pid))
print("hanging", file=sys.stderr, flush=True)
time.sleep(60)
"""


def test_a_job_that_hangs_is_ended_with_its_grandchildren(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    start = time.monotonic()
    outcome = run(make_job(*python(HANG), "{out}", timeout_s=1.5), tmp_path)
    assert time.monotonic() - start < 10
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("timeout", None, "SIGKILL")
    assert "still running at timeout_s = 1.5" in (outcome.message or "")
    assert "hanging" in (outcome.message or "")
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())), 5)


def test_a_job_that_exits_with_0_after_sigterm_is_still_a_timeout(tmp_path: Path) -> None:
    program = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(60)"
    outcome = run(make_job(*python(program), timeout_s=1), tmp_path)
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("timeout", 0, None)


# A grandchild in a session of its own, as a daemon makes itself, deaf to SIGTERM; its parent ends or waits.
DAEMON = """
import subprocess, sys, time
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60 & wait"], start_new_session=True)
print(child.pid, flush=True)
"""


def test_what_left_the_session_of_a_job_is_killed_with_it(tmp_path: Path) -> None:
    assert run(make_job(*python(DAEMON)), tmp_path).completed
    wait_for(lambda: not alive(int((tmp_path / "stdout.log").read_text())), 5)


def test_a_daemon_of_a_job_is_killed_at_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    assert run(make_job(*python(DAEMON + "time.sleep(60)"), timeout_s=2), tmp_path).state == "timeout"
    wait_for(lambda: not alive(int((tmp_path / "stdout.log").read_text())), 5)


def test_a_missing_command_is_not_started(tmp_path: Path) -> None:
    outcome = run(make_job("no-such-command"), tmp_path)
    assert outcome.state == "not_started"
    assert (outcome.message or "").startswith("demo-s0: not started: no command 'no-such-command' in the environment")
    assert "Hint: install it in " in (outcome.message or "")


def test_a_command_that_cannot_be_executed_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert run(make_job(str(tmp_path / "text")), tmp_path).state == "not_started"


def test_output_is_not_held_in_memory(tmp_path: Path) -> None:
    before = resident_bytes()
    assert run(make_job("sh", "-c", "head -c 100000000 /dev/zero; head -c 50000000 /dev/zero >&2; exit 1"), tmp_path)
    assert resident_bytes() - before < 20e6
    assert (tmp_path / "stdout.log").stat().st_size < 17 * 2**20


def test_progress_shows_the_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")
    lines: list[str] = []
    program = "import sys, time; print('step 1\\rstep 2\\n', file=sys.stderr, flush=True); time.sleep(0.5)"
    LocalExecutor().run(make_job(*python(program)), HERE, tmp_path, lines.append)
    assert lines == ["step 2"]


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("with open('/dev/full', 'w') as file: file.write('x' * 100_000)", "the disk is full"),
        ("raise OSError(28, 'No space left on device', '/dev/shm/x')", "is /dev/shm full?"),
        ("raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.')", "XLA ran out of the device's"),
    ],
)
def test_a_full_disk_or_device_is_named_in_the_hint(tmp_path: Path, program: str, hint: str) -> None:
    outcome = run(make_job(*python(program)), tmp_path)
    assert outcome.state == "failed"
    assert f"Hint: {hint}" in (outcome.message or "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interruption_ends_the_job_and_what_left_its_session(tmp_path: Path, number: int) -> None:
    program = (
        "import pathlib, signal, sys; from tests.ci.jobs import *; from nightjar_ci.cli import _end_on_signal;"
        "from nightjar_ci.executors.local import LocalExecutor; signal.signal(15, _end_on_signal);"
        "LocalExecutor().run(make_job('sh', '-c', 'setsid sleep 60 & echo $!; wait'), HERE, pathlib.Path(sys.argv[1]))"
    )
    running = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.DEVNULL, cwd=ROOT)
    log = tmp_path / "stdout.log"
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), 20)
    job = int(log.read_text())
    os.kill(running.pid, number)
    assert running.wait(timeout=20) != 0
    wait_for(lambda: not alive(job), 5)


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_broken_sandbox_is_said_once_unless_off(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    put_on_path(monkeypatch, tmp_path / "bin", {"bwrap": broken})
    monkeypatch.setenv("NIGHTJAR_SANDBOX", mode)
    monkeypatch.setattr("nightjar_ci.sandbox.confine._reported_lacks", set())
    lines: list[str] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        LocalExecutor().run(make_job("true"), HERE, tmp_path / name, lines.append)
    said = [line for line in lines if "not confined" in line]
    assert len(said) == (mode == "auto")
    assert all("does not work here: bwrap: No permissions to create new namespace" in line for line in said)


def test_a_log_that_cannot_be_written_is_no_fault_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").mkdir()
    with pytest.raises(process.UnwritableLogError, match=r"stdout\.log"):
        run(make_job("true"), tmp_path)
