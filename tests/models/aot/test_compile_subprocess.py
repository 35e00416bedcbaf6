"""A compiler that ends its process, played by functions that do. Each process imports this file: keep it light."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from nightjar_models.aot.compile_subprocess import LOG, CompilerProcess, tail_log
from nightjar_models.errors import CompilerError, InputError
from tests.places import ROOT


def test_what_the_compiler_said_before_it_ended_the_process_is_shown(tmp_path: Path) -> None:
    program = """
import os, sys
from nightjar_models.aot.compile_subprocess import LOG, watched_folder
with watched_folder() as folder:
    (folder / LOG).write_text("LLVM Fatal Error\\n*** a frame\\n")
    if sys.argv[1] == "end":
        os._exit(1)
"""
    shown = {}
    for how in ("end", "go on"):
        command = [sys.executable, "-c", program, how]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        shown[how] = done.returncode, done.stderr
    assert shown["end"][0] == 1
    assert shown["end"][1].splitlines()[-1] == "LLVM Fatal Error"
    assert "the compiler's process died" in shown["end"][1]
    assert shown["go on"] == (0, "")
    assert not list(tmp_path.iterdir())


def end_process(folder: Path, said: str) -> NoReturn:
    (folder / LOG).write_text(said)
    os._exit(1)


def note_process(folder: Path) -> int:
    (folder / "dump").touch()
    return os.getpid()


def test_a_compiler_that_ends_its_process_does_not_end_the_search() -> None:
    with CompilerProcess() as compiler:
        first = [compiler.call(note_process) for _ in range(2)]
        for text, message in (
            ("LLVM Fatal Error: why\n", "process died: LLVM Fatal Error: why"),
            ("", "no output; it may have been killed"),
        ):
            with pytest.raises(CompilerError, match=message):
                compiler.call(end_process, text)
        assert first[0] == first[1] != os.getpid()
        assert compiler.call(note_process) not in first


def refuse(_: Path) -> None:
    raise InputError("--mesh dp3: 3 devices", "name h100x3")


def test_a_refusal_comes_back_whole_from_another_process() -> None:
    with CompilerProcess() as compiler, pytest.raises(InputError) as raised:
        compiler.call(refuse)
    assert (raised.value.message, raised.value.hint) == ("--mesh dp3: 3 devices", "name h100x3")


SEARCH = """
import signal
from nightjar_models.aot.compile_subprocess import CompilerProcess
from tests.models.aot.test_compile_subprocess import compile_for_ever
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    with CompilerProcess() as compiler:
        compiler.call(compile_for_ever)
"""


def compile_for_ever(folder: Path) -> NoReturn:
    (folder / "dump").touch()
    print(os.getpid(), flush=True)
    while True:
        time.sleep(1)


def is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whoever_ends_the_search_ends_the_compiler_and_its_dumps(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "search.py").write_text(SEARCH)
    (tmp_path / "dumps").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "dumps"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "search.py")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    ) as search:
        assert search.stdout is not None
        compiler = int(search.stdout.readline())
        assert is_there(compiler)
        os.killpg(search.pid, how)  # as a terminal does
        search.stdout.close()
        search.wait(30)
    until = time.monotonic() + 30
    while (is_there(compiler) or list((tmp_path / "dumps").glob("nightjar-*"))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_there(compiler)
    assert not list((tmp_path / "dumps").glob("nightjar-*"))


def test_the_last_words_hold_what_failed_and_no_stack(tmp_path: Path) -> None:
    said = """I0000 00:00:1 a.cc:1] loading
F0000 00:00:1 b.cc:2] Check failed: tiles > 0
*** Check failure stack trace: ***
    @     0x7f00  somewhere::else()
----
Fatal Python error: Aborted
"""
    (tmp_path / LOG).write_text(said)
    assert tail_log(tmp_path) == ["F0000 00:00:1 b.cc:2] Check failed: tiles > 0", "Fatal Python error: Aborted"]
