"""A compiler that ends its process, played by functions that do. Each process imports this file: keep it light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from nightjar_models.ahead.apart import LOG, Apart
from nightjar_models.errors import CompilerError, InputError


def test_what_the_compiler_said_before_it_ended_the_process_is_shown(tmp_path: Path) -> None:
    program = """
import os, sys
from nightjar_models.ahead.apart import LOG, watched_folder
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
    assert "the compiler ended its process" in shown["end"][1]
    assert shown["go on"] == (0, "")
    assert not list(tmp_path.iterdir())


def end_process(folder: Path, said: str) -> NoReturn:
    (folder / LOG).write_text(said)
    os._exit(1)


def note_process(folder: Path) -> int:
    (folder / "dump").touch()
    return os.getpid()


def test_a_compiler_that_ends_its_process_does_not_end_the_search() -> None:
    with Apart() as apart:
        first = [apart.call(note_process) for _ in range(2)]
        for said, heard in (("LLVM Fatal Error: why\n", "process: LLVM Fatal Error: why"), ("", "it said nothing")):
            with pytest.raises(CompilerError, match=heard):
                apart.call(end_process, said)
        assert first[0] == first[1] != os.getpid()
        assert apart.call(note_process) not in first


def refuse(_: Path) -> None:
    raise InputError("--mesh dp3: 3 devices", "name h100x3")


def test_a_refusal_comes_back_whole_from_another_process() -> None:
    with Apart() as apart, pytest.raises(InputError) as raised:
        apart.call(refuse)
    assert (raised.value.message, raised.value.hint) == ("--mesh dp3: 3 devices", "name h100x3")
