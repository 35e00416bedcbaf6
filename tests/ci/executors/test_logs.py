"""Logs of jobs that print without end."""

import os
import re
import threading
import time
from pathlib import Path

import pytest

from nightjar_ci.adapters.convert import adapt
from nightjar_ci.errors import InputError
from nightjar_ci.executors import supervisor
from nightjar_ci.executors.process import KEEP_LINES, run_process
from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.untrusted.files import LEFT_OUT, read_after_left_out
from nightjar_ci.untrusted.masking import NO_MASK, make_mask
from tests.ci.adapters.test_formats import ABOUT
from tests.ci.jobs import python
from tests.ci.small_disk import mount_disk

KEPT = 2 * supervisor.END_BYTES + 100


def run(folder: Path, *command: str, timeout_s: float = 60) -> bytes:
    run_process(command, os.environ, folder, timeout_s)
    return (folder / "stdout.log").read_bytes()


def shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


def test_head_and_tail_of_a_long_log_are_kept_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    log = run(tmp_path, "seq", "1", "20000000")
    size = sum(9 * 10 ** (digits - 1) * (digits + 1) for digits in range(1, 8)) + (20_000_000 - 10**7 + 1) * 9
    assert len(log) <= KEPT
    head, line, tail = re.split(rb"\n(\[nightjar left out +\d+ bytes here\])\n", log)
    assert len(head) == supervisor.END_BYTES
    assert head.startswith(b"1\n2\n")
    numbers = tail.split()
    assert numbers[-1] == b"20000000"
    assert [int(number) for number in numbers] == list(range(int(numbers[0]), 20_000_001))
    assert read_after_left_out(line.decode()) == ("", size - len(head) - len(tail))


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("at", ["start", "middle"])
def test_the_last_line_with_a_word_is_kept_behind_what_was_left_out(at: str, secret: bool, tmp_path: Path) -> None:
    first, second = {"start": (0, 10**7), "middle": (5 * 10**6, 5 * 10**6)}[at]
    text = f"echo us=1; seq 1 {first}; echo us=2; echo us_more=3; echo thus 4; seq 1 {second}"
    mask = make_mask(["SECRET"], {"SECRET": "12345678 no number"}) if secret else NO_MASK
    run_process(shell(text), {**os.environ, KEEP_LINES: "us"}, tmp_path, 60, mask=mask)
    tail, left_out = read_after_left_out((tmp_path / "stdout.log").read_text())
    assert left_out > 0
    assert tail.splitlines()[1] == "us=2"


def test_a_log_that_fits_is_kept_byte_for_byte(tmp_path: Path) -> None:
    program = f"import sys; sys.stdout.buffer.write(bytes(range(256)) * ({2 * supervisor.END_BYTES} // 256))"
    assert run(tmp_path, *python(program)) == bytes(range(256)) * (2 * supervisor.END_BYTES // 256)


def test_both_streams_are_kept_apart(tmp_path: Path) -> None:
    assert run(tmp_path, *shell("echo out; echo err >&2; echo out")) == b"out\nout\n"
    assert (tmp_path / "stderr.log").read_bytes() == b"err\n"


def test_a_job_that_prints_for_ever_never_takes_more_than_two_tails_and_ends_at_its_timeout(tmp_path: Path) -> None:
    sizes: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            time.sleep(0.01)
            sizes.append((tmp_path / "stdout.log").stat().st_size if (tmp_path / "stdout.log").exists() else 0)

    thread = threading.Thread(target=watch)
    thread.start()
    done = run_process(["yes"], os.environ, tmp_path, 2)
    ended.set()
    thread.join()
    assert done.timed_out
    assert max(sizes) > 2 * supervisor.END_BYTES
    assert max(sizes) < 3 * supervisor.END_BYTES + 2 * supervisor.CHUNK_BYTES
    assert (tmp_path / "stdout.log").stat().st_size <= KEPT


def test_the_last_output_of_a_killed_job_is_in_its_log(tmp_path: Path) -> None:
    log = run(tmp_path, *python("import os; os.write(1, b'last words'); os.kill(os.getpid(), 9)"))
    assert log == b"last words"


def test_a_job_may_close_its_output_and_go_on(tmp_path: Path) -> None:
    program = "import os, time; os.close(1); os.close(2); time.sleep(0.3); open('{}', 'w').close()"
    run(tmp_path, *python(program.format(tmp_path / "done")))
    assert (tmp_path / "done").exists()


@pytest.mark.mount
def test_a_full_disk_ends_the_log_and_not_the_job(tmp_path: Path) -> None:
    with mount_disk(tmp_path / "disk", "1m") as disk:
        ended = run_process(shell("head -c 5000000 /dev/zero; exit 7"), os.environ, disk, 30)
        assert ended.exit_code == 7
        assert (disk / "stdout.log").stat().st_size <= 2**20


def test_what_the_reader_looks_for_is_what_the_supervisor_writes() -> None:
    assert b"\n" + LEFT_OUT + b"\n" == supervisor.LEFT_OUT


@pytest.mark.parametrize("format_", ["log", "jsonl", "csv"])
def test_records_are_not_read_from_a_log_whose_middle_was_left_out(tmp_path: Path, format_: str) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b'{"loss": 1}\n' + LEFT_OUT % 1234 + b'\n{"loss": 2}\n')
    keys = {"format": format_, "sample": [{"field": "loss"}]} | (
        {"pattern": '"loss": (?P<loss>.*)}'} if format_ == "log" else {}
    )
    with pytest.raises(InputError, match=r"stdout\.log: 1,234 bytes were left out, so records are missing"):
        adapt([path], Adapter.model_validate(keys), ABOUT)
