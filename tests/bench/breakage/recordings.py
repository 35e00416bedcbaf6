"""The recordings of several matrices as one, and the jobs that a night of a fault runs.

In: recordings of `nightjar-ci calls`. Out: one with the cells of all, and the matrix of each cell.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from nightjar_ci.calls.record import choose_jobs
from nightjar_ci.formats.calls import Calls
from nightjar_ci.formats.job import Job
from nightjar_ci.night.matrix import expand, move_job, read_matrix
from nightjar_models import conformance
from tests.bench.table import NotMeasuredError
from tests.places import ROOT

# name of a matrix to the jobs that are meant; all of them run in the current environment, with its planted library
MATRICES = {"nightly-cpu": "", "nightly-upstream": "conformance"}
CONFORMANCE = "conformance-tests-cpu"
WHOLE = ""  # the part of a cell that is not divided


def list_parts(cell: str) -> list[str]:
    """The files of the conformance tests; of another cell its whole."""
    if cell != CONFORMANCE:
        return [WHOLE]
    return sorted(path.stem for path in Path(conformance.__file__).parent.glob("test_*.py"))


def name_part(cell: str, part: str) -> str:
    """The name of a part of a cell among the recorded lines."""
    return f"{cell}.{part}" if part else cell


def choose_parts(parts: Collection[str]) -> tuple[str, ...]:
    """The options behind the command of a job with which it runs only these parts, in one process."""
    files = sorted(part for part in parts if part)
    return ("-n", "0", "-k", " or ".join(files)) if files else ()


def write_matrix(name: str, parts: Collection[str], folder: Path) -> Path:
    """A matrix of this repository, with only these parts of its conformance tests; its own file where all run."""
    path = ROOT / "ci" / "matrix" / f"{name}.toml"
    options = choose_parts(parts)
    if not options:
        return path
    text, last = path.read_text(encoding="utf-8"), '"junit_family=xunit1",'
    if text.count(last) != 1:
        raise NotMeasuredError(f"{path}: expected one command with {last}")
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"{name}.toml"
    written.write_text(text.replace(last, f"{last} {json.dumps(options)[1:-1]},"), encoding="utf-8")
    return written


def join_calls(recordings: Sequence[Calls]) -> tuple[Calls, dict[str, str]]:
    """One recording with the cells of all, and by cell the name of its matrix."""
    functions = sorted({function for calls in recordings for function in calls.functions})
    places = {function: place for place, function in enumerate(functions)}
    cells, matrices = {}, {}
    for calls in recordings:
        for cell, recorded in calls.cells.items():
            own = tuple(sorted(places[calls.functions[place]] for place in recorded.functions))
            cells[cell], matrices[cell] = recorded.model_copy(update={"functions": own}), calls.matrix
    joined = recordings[0].model_copy(update={"functions": tuple(functions), "cells": cells, "names": {}})
    return joined, matrices


def choose_recorded(name: str) -> list[Job]:
    """One job of each cell of a matrix, as a night of a fault runs it."""
    jobs = expand(read_matrix(ROOT / "ci" / "matrix" / f"{name}.toml"))
    meant = [job for job in jobs if job.id.startswith(MATRICES[name])]
    return choose_jobs([move_job(job, executor=None, environment="current") for job in meant])
