"""A process that keeps what it frees pays once for the pages of an array, and leaves alone who tunes malloc himself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Never

import pytest
from typer.testing import CliRunner

from nightjar_models.cli import app
from nightjar_models.errors import InputError
from nightjar_models.training.freed_memory import keep_freed_memory

PROGRAM = """
import ctypes, resource, sys, threading
from nightjar_models.training.freed_memory import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory({})
library, size = ctypes.CDLL(None), 48 << 20  # more than glibc ever keeps by itself
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    piece = library.malloc(size)
    library.memset(piece, 1, size)
    library.free(piece)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def report():
    use()
    print(int(kept), min(use() for _ in range(3)))
if sys.argv[2] == "thread":  # whose first heap of 64 MiB has no room for the piece
    def fill():
        for _ in range(32):
            library.malloc(1 << 20)
        report()
    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
else:
    report()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted for glibc")
@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("how", ["keep", "leave"])
def test_pages_of_a_large_array_are_paid_for_once(how: str, where: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, how, where], check=True, capture_output=True, text=True)
    kept, faults = map(int, ended.stdout.split())
    assert kept == (how == "keep")
    assert (faults < 10) == (how == "keep")  # 24 pages where all are huge ones, else 12,288


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("MALLOC_MMAP_MAX_", "65536", True),
        ("MALLOC_TRIM_THRESHOLD_", "131072", True),
        ("MALLOC_TOP_PAD_", "131072", True),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576", True),
        ("MALLOC_ARENA_MAX", "1", False),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", False),
    ],
)
def test_who_says_when_memory_is_given_back_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, left: bool
) -> None:
    class Library:
        mallopt = staticmethod(lambda parameter, value: 1)

    monkeypatch.setattr("nightjar_models.training.freed_memory.ctypes.CDLL", lambda path: Library)
    assert keep_freed_memory({name: value}) != left


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_models.training.freed_memory.ctypes.CDLL", lambda path: object())
    assert not keep_freed_memory({})


@pytest.mark.parametrize(("backend", "expected"), [("cpu", ["keep", "train"]), ("gpu", ["train"])])
def test_a_training_on_a_cpu_keeps_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, expected: list[str]
) -> None:
    order = []

    def refuse(*_: object, **__: object) -> Never:
        order.append("train")
        raise InputError("no step is taken")

    monkeypatch.setattr("jax.default_backend", lambda: backend)
    monkeypatch.setattr("nightjar_models.training.train.train", refuse)
    monkeypatch.setattr("nightjar_models.commands.train.keep_freed_memory", lambda: order.append("keep"))
    ended = CliRunner().invoke(app, ["train", "gpt_tiny", "--out", str(tmp_path / "out")])
    assert isinstance(ended.exception, InputError)
    assert order == expected
