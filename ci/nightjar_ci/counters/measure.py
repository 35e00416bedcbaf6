"""The measurements of a job that a matrix requests with `measure`, besides the job's own.

In: a job and its folder, before and after it runs. Out: the job with its counters, and further samples in its
`result.json`. A sample that the job already has is left unchanged.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from nightjar_ci.counters.on_path import with_recorder, write_recorder
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.run_record import Sample, read_run
from nightjar_ci.untrusted.files import read_untrusted

FOLDER = "counters"  # in the job's own
_ON_PATH, _EVENTS, _JAXPRS = "on-path", "front-end", "jaxprs"
_RECORDER = Path(__file__).with_name("front_end.py")
_STAGES = {"trace": "trace_count", "lower": None, "compile": "compile_count"}  # lowered programs are compiled
_EQUATION = " = "  # in a jaxpr, of equations alone: parameters have no blanks around it
_MOST_FILES, _MOST_EVENTS, _LONGEST_S = 100_000, 1_000_000, 30.0  # of a job's files


def with_front_end(job: Job, folder: Path) -> Job:
    """The job with a recorder in its Python processes, and JAX's dump of its jaxprs."""
    if "front_end" not in job.measure:
        return job
    shutil.rmtree(folder / FOLDER, ignore_errors=True)  # of a run that a kill ended
    write_recorder(folder / FOLDER / _ON_PATH, _RECORDER)
    (folder / FOLDER / _EVENTS).mkdir()
    variables = {"NIGHTJAR_FRONT_END": f"{{out}}/{FOLDER}/{_EVENTS}"}
    if "JAX_DUMP_IR_TO" not in job.env:
        variables |= {"JAX_DUMP_IR_TO": f"{{out}}/{FOLDER}/{_JAXPRS}", "JAX_DUMP_IR_MODES": "jaxpr"}
    return with_recorder(job, f"{{out}}/{FOLDER}/{_ON_PATH}", os.environ, variables)


def add_samples(job: Job, folder: Path) -> None:
    """Adds the measurements to a job's result, and removes the files that they were counted from.

    A missing or invalid result is left unchanged.
    """
    samples = read_front_end(folder)
    try:
        run = read_run(folder / "result.json", left_in=folder)
    except InputError:
        return
    more = tuple(sample for sample in samples if run.sample(sample.name) is None)
    write_json(folder / "result.json", run.model_copy(update={"samples": (*run.samples, *more)}))
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def read_front_end(folder: Path) -> Iterable[Sample]:
    """Times and counts of JAX's tracing, lowering and compiling in a job, and the primitives of its programs."""
    deadline = time.monotonic() + _LONGEST_S
    events: list[tuple[str, Any, float, float]] = []
    for path in _find(folder, _EVENTS, "*.jsonl"):
        events += _read_events(folder, path)
        _check_size(len(events) > _MOST_EVENTS or time.monotonic() > deadline, folder)
    if not events:
        raise InputError(
            "no Python process of the job compiled a program with JAX.",
            "a program that sets PYTHONPATH itself, or runs `python -I`, is not seen: leave front_end out of 'measure'",
        )
    samples = []
    for stage, counted in _STAGES.items():
        spans = [event[1:] for event in events if event[0] == stage]
        samples.append(Sample(name=f"{stage}_time", unit="s", better="lower", values=(sum_outermost(spans),)))
        if counted is not None:
            samples.append(Sample(name=counted, unit="programs", better="lower", values=(float(len(spans)),)))
    if jaxprs := _find(folder, _JAXPRS, "*.jaxpr.txt"):
        total = 0
        for path in jaxprs:
            total += _read_text(folder, path).count(_EQUATION)
            _check_size(time.monotonic() > deadline, folder)
        samples.append(Sample(name="primitive_count", unit="primitives", better="lower", values=(float(total),)))
    return samples


def sum_outermost(spans: Iterable[tuple[object, float, float]]) -> float:
    """The seconds in spans of several threads, each as thread, begin and end; nested spans count once.

    >>> sum_outermost([("a", 1.0, 2.0), ("a", 0.0, 4.0), ("b", 0.0, 1.0)])
    5.0
    """
    total, ends = 0.0, dict[object, float]()
    for thread, begin, end in sorted(spans, key=lambda span: (str(span[0]), span[1])):
        begin = max(begin, ends.get(thread, -math.inf))
        if end > begin:
            total += end - begin
            ends[thread] = end
    return total


def _read_events(folder: Path, path: Path) -> Iterable[tuple[str, Any, float, float]]:
    """The events of one process; a last line that it did not finish is left out."""
    for line in _read_text(folder, path).splitlines():
        try:
            stage, thread, begin, end = json.loads(line)
            if stage in _STAGES and 0 <= float(begin) <= float(end) < math.inf:
                yield stage, (path.name, thread), float(begin), float(end)
        except (TypeError, ValueError):
            continue


def _check_size(too_much: bool, folder: Path) -> None:
    if too_much:
        raise InputError(
            f"{folder / FOLDER}: more was recorded than is read within {_LONGEST_S:g} s.", "measure a shorter run"
        )


def _find(folder: Path, part: str, pattern: str) -> list[Path]:
    paths = sorted(islice((folder / FOLDER / part).glob(pattern), _MOST_FILES + 1))
    if len(paths) > _MOST_FILES:
        raise InputError(f"{folder / FOLDER / part} has more than {_MOST_FILES:,} files {pattern}.")
    return paths


def _read_text(folder: Path, path: Path) -> str:
    try:
        return read_untrusted(folder, path.relative_to(folder)).decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error}.") from None
