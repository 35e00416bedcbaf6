"""The recorder in real processes: what runs, who reads which name, and what a killed process leaves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nightjar_ci.calls.recorder as recorder
from nightjar_ci.calls.recording import Recording, read_recording
from nightjar_ci.counters.on_path import write_recorder

LIBRARY = """
import abc
import functools
import typing


def add(x):
    return _add(x)


def _add(x):
    return x + 1


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


@decorated
def halve(x):
    return x / 2


class Layer:
    def __init__(self):
        self.value = other()


def other():
    return 1


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


class Sized(typing.Protocol):
    def size(self): ...


class Solid(Shape):
    def volume(self):
        return 1


LIMIT = 3
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder on the path with a package `library` and its public module `library.more`."""
    package = tmp_path / "path" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    (package / "more.py").write_text("from library import Layer as Alias\n")
    return tmp_path / "path"


def run(library: Path, code: str, **variables: str) -> Recording:
    """Records a program that has the library on its path."""
    folder = library.parent / "recorded"
    on_path = library.parent / "on-path"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.rmtree(on_path, ignore_errors=True)
    write_recorder(on_path, Path(recorder.__file__))
    (folder / "used.txt").write_text("library.Layer\nlibrary.more.Alias\nlibrary.absent\n")
    environ = {
        **os.environ,
        "PYTHONPATH": f"{on_path}{os.pathsep}{library}",
        "NIGHTJAR_CALLS": str(folder),
        "NIGHTJAR_CALLS_PACKAGES": "library",
        "NIGHTJAR_CALLS_USED": str(folder / "used.txt"),
        **variables,
    }
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    assert not done.stderr
    return read_recording(folder)


def test_functions_that_run_are_recorded_whoever_calls_them(library: Path) -> None:
    recording = run(library, "import library; library.add(1); library.halve")
    assert {"library:add", "library:_add"} <= recording.functions
    assert "library:halve" not in recording.functions


def test_a_name_is_executed_where_its_own_function_ran_or_it_is_a_value(library: Path) -> None:
    recording = run(library, "import library; library.add; library.halve(2); library.LIMIT; library.Layer")
    assert set(recording.executed()) == {"library.halve", "library.LIMIT"}


def test_a_class_of_abstract_methods_or_a_protocol_has_nothing_to_run(library: Path) -> None:
    recording = run(library, "import library; library.Shape; library.Sized; library.Solid")
    assert set(recording.executed()) == {"library.Shape", "library.Sized"}


def test_calls_of_a_library_on_its_own_behalf_do_not_count_as_a_name_of_its_users(library: Path) -> None:
    recording = run(library, "from library import Layer; Layer()")
    assert set(recording.executed()) == {"library.Layer"}
    assert "library:other" in recording.functions


def test_an_object_counts_for_each_of_its_public_names(library: Path) -> None:
    recording = run(library, "import library.more; library.more.Alias()")
    assert recording.executed()["library.Layer"] == {"__main__"}


def test_what_ran_before_a_kill_is_recorded(library: Path) -> None:
    recording = run(library, "import library, os; library.add(1); os.kill(os.getpid(), 9)")
    assert "library:_add" in recording.functions


def test_child_processes_and_threads_are_recorded(library: Path) -> None:
    code = (
        "import subprocess, sys, threading, library\n"
        "subprocess.run([sys.executable, '-c', 'import library; library.halve(2)'], check=True)\n"
        "thread = threading.Thread(target=library.add, args=(1,)); thread.start(); thread.join()\n"
    )
    assert {"library:halve", "library:add"} <= run(library, code).functions


def test_a_forked_child_that_ends_at_once_leaves_what_it_ran(library: Path) -> None:
    code = "import os, library\npid = os.fork()\nif pid == 0:\n    library.add(1); os._exit(0)\nos.waitpid(pid, 0)\n"
    assert "library:add" in run(library, code).functions


def test_another_sitecustomize_still_runs(library: Path) -> None:
    (library / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 1\n")
    assert "library:add" in run(library, "import library; library.add(theirs)").functions


def test_a_watched_module_is_pickled_by_its_name(library: Path) -> None:
    code = "import copyreg, pickle, library\nassert pickle.loads(pickle.dumps(library)) is library\n"
    run(library, code)
