"""What is left of a bisection that was killed, and does it go on?"""

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from nightjar_ci.bisect.result.report import Progress
from nightjar_ci.bisect.state import read_probes
from tests.ci.bisect.test_command import answer, bisect, program, rungs
from tests.ci.executors.test_docker import IMAGE, calls, real_image
from tests.ci.executors.test_local import alive
from tests.ci.jobs import wait_for

__all__ = ["calls", "real_image"]

SLOW = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[1], "pids").write_text(f"{os.getpid()} {child.pid}")
time.sleep(600 if os.path.exists("hang") else 0.2)
sys.exit(n >= 13)
"""


def find_pids(state: Path) -> list[int]:
    return [int(pid) for path in state.glob("bisections/*/probes/*/pids") for pid in path.read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_bisection_leaves_no_test_running_and_the_same_command_goes_on(
    workers: int, number: signal.Signals, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--rungs", str(rungs(tmp_path)), "--workers", str(workers), *program(tmp_path, SLOW), "{out}"]
    command = [sys.executable, "-m", "nightjar_ci", "bisect", *arguments]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(len(read_probes(p.parent)) >= 3 for p in state.glob("*/*/probes.jsonl")))
    (tmp_path / "hang").touch()
    wait_for(lambda: sum(map(alive, find_pids(state))) >= 2 * workers)
    time.sleep(0.2)
    running = [pid for pid in find_pids(state) if alive(pid)]
    first.send_signal(number)
    first.wait()
    wait_for(lambda: not any(map(alive, running)))
    (tmp_path / "hang").unlink()
    folder = next(state.glob("bisections/*"))
    before = read_probes(folder)
    assert len(before) >= 3
    with (folder / "probes.jsonl").open("a") as file:
        file.write('{"stage": 0, "rung"')  # torn
    found = answer(*arguments)
    assert (found["exit_code"], found["culprits"]) == (0, ["n013"])
    assert "going on after" in found["stderr"]
    after = read_probes(folder)
    assert after[: len(before)] == before
    assert answer(*arguments)["tests"] == len(after)
    assert len(read_probes(folder)) == len(after)
    assert not any(map(alive, find_pids(state)))


def start_in(image: str, tmp_path: Path, *test: str) -> subprocess.Popen[bytes]:
    """A bisection whose tests run in containers of an image."""
    options = ["--rungs", str(rungs(tmp_path)), "--environment", f"image:{image}"]
    command = [sys.executable, "-m", "nightjar_ci", "bisect", *options, "--workers", "1", "--", *test]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_when_a_bisection_is_killed_the_engine_is_asked_to_kill_its_container(tmp_path: Path, calls: Path) -> None:
    def asked(verb: str) -> list[list[str]]:
        lines = calls.read_text().splitlines(keepends=True) if calls.exists() else []
        return [call for line in lines if line.endswith("\n") and (call := json.loads(line))[0] == verb]

    first = start_in(IMAGE, tmp_path, "sleep", "60")
    wait_for(lambda: asked("run"))
    name = asked("run")[0][asked("run")[0].index("--name") + 1]
    wait_for((calls.parent / name).exists)
    first.kill()
    first.wait()
    wait_for(lambda: ["kill", name] in asked("kill"))


def test_a_real_container_does_not_outlive_a_bisection_that_was_killed(tmp_path: Path, real_image: str) -> None:
    def containers() -> list[str]:
        listing = ["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={real_image}"]
        return subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()

    first = start_in(real_image, tmp_path, "/bin/sleep", "600")
    wait_for(containers)
    first.kill()
    first.wait()
    wait_for(lambda: not containers())


def test_an_interrupted_bisection_says_that_it_can_go_on() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress(Console(file=stream)):
        raise KeyboardInterrupt
    assert "the same command goes on" in stream.getvalue()


def test_a_bisection_that_goes_on_numbers_its_probes_from_where_it_was(tmp_path: Path, state: Path) -> None:
    options = ("--rungs", rungs(tmp_path), "--deterministic", *program(tmp_path, "sys.exit(n >= 13)"))
    assert "[1] n" in bisect(*options).stderr
    (kept,) = state.rglob("probes.jsonl")
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:2]))
    document = kept.with_name("bisection.json")
    written = json.loads(document.read_text())
    document.write_text(
        json.dumps({"id": kept.parent.name, "find": "regression", **written})
    )  # as before November 2026
    numbers = re.findall(r"^\[(\d+)\] ", bisect(*options).stderr, re.MULTILINE)
    assert numbers[0] == "3"
