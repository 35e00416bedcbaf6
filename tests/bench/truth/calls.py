"""Is every stack of a capture one that the program had? Its own calls are taken as it runs without jit."""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from nightjar_profiling import capture_steps, load
from nightjar_profiling.attribution.apportion import apportion_time
from nightjar_profiling.attribution.stacks import build_stacks
from tests.bench.table import Row
from tests.bench.truth import called_programs

jax: Any = import_module("jax")  # many of its functions have no types

Calls = tuple[tuple[int, str], ...]
"""Line and function of each frame in the programs' file, outermost first."""

FILE = called_programs.__file__
LARGEST_FALSE = 2.0  # goal: percent of the time whose stack the program did not have


def list_goals(only: str) -> list[str]:
    return [f"calls of {name}: {what}" for name in called_programs.PROGRAMS for what in MEASURED if only in name]


MEASURED = ("time on false stacks", "stacks with a call too many")


def measure_calls(only: str) -> list[Row]:
    """The share of the time whose stack is false, and stacks that repeat a call, by program."""
    rows = []
    for name, (function, argument) in called_programs.PROGRAMS.items():
        if only not in name:
            continue
        print(f"measuring: calls of {name}", file=sys.stderr, flush=True)
        true = record_calls(function, argument)
        spent = capture_calls(function, argument)
        false = [calls for calls in spent if calls not in true]
        named, known = sum(spent[calls] for calls in spent if calls), max(sum(spent.values()), 1)
        lost = 100 * sum(spent[calls] for calls in false) / max(named, 1)
        rows += [
            Row(f"calls of {name}: {MEASURED[0]}", lost, goal=LARGEST_FALSE, unit="%"),
            Row(f"calls of {name}: {MEASURED[1]}", sum(len(set(calls)) < len(calls) for calls in false), goal=0),
            Row(f"calls of {name}: time with a stack", 100 * named / known, unit="%"),
        ]
    return rows


def record_calls(function: Callable[[Any], Any], argument: Any) -> set[Calls]:
    """The stacks that a program has while it runs, each call for itself, and no stack."""
    found: set[Calls] = {()}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call"):
            found.add(read_calls(frame))

    with jax.disable_jit():
        sys.setprofile(note)
        try:
            function(argument)
        finally:
            sys.setprofile(None)
    return found


def read_calls(frame: FrameType | None) -> Calls:
    calls = []
    while frame is not None:
        if frame.f_code.co_filename == FILE:
            calls.append((frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return tuple(reversed(calls))


def capture_calls(function: Callable[[Any], Any], argument: Any) -> Counter[Calls]:
    """The device time by the stacks of a capture; time without a stack is at ()."""
    compiled = jax.jit(function)
    with tempfile.TemporaryDirectory() as temporary:
        with capture_steps(Path(temporary) / "capture") as folder:
            for _ in range(5):
                jax.block_until_ready(compiled(argument))
        tables = load(folder).read()
    stacks, spent = build_stacks(tables), Counter[Calls]()
    own = tables.programs.filter(name=f"jit_{function.__name__}")  # what ran without jit may still be running
    for row in apportion_time(tables, by=()).join(own, on="program_id", how="semi").iter_rows(named=True):
        path = [stacks.places[site] for site in stacks.path(stacks.node_of(row["program_id"], row["frame_id"]))]
        spent[tuple((line, name) for file, line, name in path if file == FILE)] += row["duration_ns"]
    return spent
