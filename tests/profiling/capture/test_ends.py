"""What a program leaves that traces itself, or ends by a signal, by `os._exit` or without a trace; JAX is a fake."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiling.capture.test_capture import STEPS
from tests.profiling.conftest import Run

OWN = """
import jax
jax.profiler.start_trace(log_dir="own")
for number in range(3):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        jax.compute()
"""


@pytest.mark.parametrize("steps", [(), ("--steps", "1:1")])
def test_where_the_program_traces_itself_meanwhile_the_capture_is_a_copy_of_its_trace(
    run_command: Run, variables: dict[str, str], tmp_path: Path, steps: tuple[str, ...]
) -> None:
    program = f"{OWN}\njax.profiler.stop_trace()"
    done = run_command("capture", *steps, "--", sys.executable, "-c", program, **variables)
    assert done.returncode == 0, done.stderr
    own = tmp_path / "own" / "plugins" / "profile" / "now" / "host.xplane.pb"
    assert f"the program's own trace was running: this profile is a copy of it ({own})" in done.stderr
    assert own.read_bytes() == (tmp_path / "capture" / "raw" / "rank0000.xplane.pb").read_bytes()
    assert ("Steps 1 to 1 were asked for, 0 to 2 traced" in done.stderr) is bool(steps)


def test_an_endless_trace_of_the_program_is_said_to_be_in_the_way(run_command: Run, variables: dict[str, str]) -> None:
    done = run_command("capture", "--", sys.executable, "-c", OWN, **variables)
    assert done.returncode == 3
    assert "the program's own trace was running, and never stopped" in done.stderr


def test_a_stop_without_a_start_does_not_end_the_capture(run_command: Run, variables: dict[str, str]) -> None:
    program = f"{STEPS}\ntry: jax.profiler.stop_trace()\nexcept RuntimeError as error: print(error)"
    done = run_command("capture", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.splitlines()[-3:-1] == ["No profile started", "stop"]
    assert done.returncode == 0


def test_a_program_that_leaves_by_os_exit_keeps_its_exit_code_and_what_was_captured(
    run_command: Run, variables: dict[str, str], tmp_path: Path
) -> None:
    program = f"{STEPS}\nimport os; os._exit(7)"
    done = run_command("capture", "--", sys.executable, "-c", program, **variables)
    assert done.returncode == 7, done.stderr
    assert json.loads((tmp_path / "capture" / "profile.json").read_text())["device_time_ns"] == 100


def test_a_child_that_leaves_leaves_the_trace_to_its_parent(run_command: Run, variables: dict[str, str]) -> None:
    program = f"import os\n{STEPS}\nif not os.fork(): os._exit(7)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))"
    done = run_command("capture", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.splitlines()[-3:-1] == ["7", "stop"]
    assert done.returncode == 0


SLOW_STOP = """
import jax, os, signal
jax.compute()
def slow(number=0, frame=None):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    return []
jax.live_arrays = slow
raise KeyboardInterrupt
"""


def test_an_impatient_ctrl_c_does_not_break_the_trace_that_is_being_written(
    run_command: Run, variables: dict[str, str], tmp_path: Path
) -> None:
    done = run_command("capture", "--", sys.executable, "-c", SLOW_STOP, **variables)
    assert done.returncode == 128 + signal.SIGINT
    assert (tmp_path / "capture" / "report.html").is_file()


# Not by print: the signal may come within it, and the fake's own print would then be a second one. Short sleeps: Python
# hears a signal that comes just before a sleep begins when that sleep is over.
WAITING = f"{STEPS}\nimport os, time\nos.write(1, b'ready\\n')\nfor _ in range(600):\n    time.sleep(0.1)"


# Starts a command that hears every signal: nohup, or a shell's background, has some ignored.
HEARING = """import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, None])
def test_without_a_terminal_a_signal_leaves_the_capture_and_its_code(
    variables: dict[str, str], tmp_path: Path, number: signal.Signals, stdin: int | None
) -> None:
    command = [sys.executable, "-m", "nightjar_profiling", "capture", "--out", str(tmp_path / "c"), "--"]
    command = ["/bin/sh", "-c", 'exec "$@"' + (" <&-" if stdin is None else ""), "sh", *command]
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HEARING, *command, sys.executable, "-c", WAITING],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ready\n":
            assert process.poll() is None
        os.killpg(process.pid, number)  # the command and the program, as a terminal, Slurm and `timeout` do
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number, said
    assert (tmp_path / "c" / "report.html").is_file(), said
    assert f"The program failed ({number.name})" in said


EARLIER = "the earlier capture in {} stays as it was."


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        ((sys.executable, "-c", "print(1)"), 4, EARLIER),
        ((sys.executable, "-c", "raise SystemExit(5)"), 5, EARLIER),
        ((sys.executable, "-c", f"{STEPS}\nimport os; os.kill(os.getpid(), 9)"), 137, EARLIER),
        *(((name,), 2, f"cannot run '{name}'") for name in ("absent", "./page.html", "page.html")),
    ],
)
def test_a_program_that_leaves_no_trace_leaves_an_earlier_capture_as_it_is(
    run_command: Run, variables: dict[str, str], tmp_path: Path, command: tuple[str, ...], exit_code: int, said: str
) -> None:
    (tmp_path / "page.html").write_text("no program")
    assert run_command("capture", "--out", "c", "--", sys.executable, "-c", STEPS, **variables).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    failed = run_command("capture", "--out", "c", "--", *command, **variables)
    assert failed.returncode == exit_code
    assert said.format(tmp_path / "c") in failed.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "c").rglob("*") if path.is_file()} == before
