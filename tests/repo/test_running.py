"""How tests run: kept programs, commands in this process, the limit of CPU time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import kept
from tests.called import call
from tests.cpu_limit import CpuLimit


def test_programs_of_another_instruction_set_or_jaxlib_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    find = kept.find_folder.__wrapped__
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    folder = find()
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=2")
    assert find() == folder  # JAX's own key has them
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    assert find() != folder
    monkeypatch.delenv("XLA_FLAGS")
    assert find() == folder
    monkeypatch.setattr(kept, "version", lambda name: "0.0")
    assert find() != folder


def test_programs_written_in_part_unused_or_over_the_limit_are_deleted(tmp_path: Path) -> None:
    folder, unused = tmp_path / "mine", tmp_path / "unused"
    names = ("commands/a-cache", "commands/a-atime", "commands/b-cache", "process/old-cache", "process/new-cache")
    for path in [folder / name for name in names] + [unused / "process" / "x-cache"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    long_ago = time.time() - 2 * kept.UNUSED_DAYS * 86400
    for path in (folder / "process/old-cache", unused):
        os.utime(path, (long_ago, long_ago))
    kept.prune(tmp_path, folder, limit_bytes=150)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"mine/commands/a-cache", "mine/commands/a-atime", "mine/process/new-cache"}


def command() -> None:
    """Says what it was given, in this process and from one that it starts; changes what it can."""
    print(*sys.argv[1:], Path.cwd().name, os.environ.get("COLOUR"), "HOME" in os.environ, flush=True)
    subprocess.run(["sh", "-c", "echo child; echo child >&2"], check=True)
    print("last", file=sys.stderr)
    os.environ["COLOUR"] = "green"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.argv[1] == "raises":
        raise ValueError("no")
    sys.exit("told" if sys.argv[1] == "says" else 4)


@pytest.mark.parametrize(
    ("word", "code", "said"), [("ends", 4, ""), ("says", 1, "told\n"), ("raises", 1, "ValueError: no\n")]
)
def test_a_command_in_this_process_answers_as_its_own_process_would(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], word: str, code: int, said: str
) -> None:
    before = dict(os.environ), Path.cwd(), list(sys.argv), signal.getsignal(signal.SIGTERM)
    done = call(command, word, 1, cwd=tmp_path, environ={"PATH": os.environ["PATH"], "COLOUR": "red"})
    assert (done.returncode, done.stdout) == (code, f"{word} 1 {tmp_path.name} red False\nchild\n")
    assert done.stderr.startswith("child\nlast\n")
    assert done.stderr.endswith(said)
    assert (dict(os.environ), Path.cwd(), sys.argv, signal.getsignal(signal.SIGTERM)) == before
    print("afterwards")
    assert capfd.readouterr() == ("afterwards\n", "")


@pytest.mark.parametrize(("limit_s", "marked", "fails"), [(0.0, False, True), (0.0, True, False), (60.0, False, False)])
def test_a_test_over_the_limit_of_cpu_time_fails_unless_it_is_slow(limit_s: float, marked: bool, fails: bool) -> None:
    limit = CpuLimit(limit_s)
    item: Any = SimpleNamespace(get_closest_marker=lambda name: name == "slow" and marked, user_properties=[])
    running = limit.pytest_runtest_call(item)
    next(running)
    sum(range(10**6))
    with pytest.raises(pytest.fail.Exception if fails else StopIteration) as ended:
        next(running)
    assert fails == ("s of CPU time, expected at most 2. Hint: " in str(ended.value))
    assert [name for name, _ in item.user_properties] == ([] if marked else ["cpu_s"])  # the summary names who is near
