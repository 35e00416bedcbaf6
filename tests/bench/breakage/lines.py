"""The lines that each cell of the nightly executes, of the functions in which faults are planted.

A cell that does not execute the changed line runs the installed program, and cannot be red by it: it is not run. The
same holds for a file of the conformance tests, which are recorded file by file, each in new processes. In: the
functions. Out: by cell, or cell and file, then function and line.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.night.run_job import prepare, run_task
from tests.bench.breakage.draw import Fault
from tests.bench.breakage.night import NO_SANDBOX
from tests.bench.breakage.recordings import MATRICES, choose_parts, choose_recorded, list_parts, name_part
from tests.bench.table import NotMeasuredError

SHORT = ("--steps", "10")  # later steps run the same compiled program; a line that only they execute would be missed

TRACER = Path(__file__).with_name("trace_lines.py")
Lines = dict[str, dict[str, list[int]]]


def record_lines(functions: Collection[str], folder: Path) -> Lines:
    """Runs one job of each cell, a training for a few steps, with its lines traced.

    Args:
        functions: `module:qualified name`.
        folder: for the jobs.
    """
    on_path = folder / "on-path"
    on_path.mkdir(parents=True)
    shutil.copyfile(TRACER, on_path / "sitecustomize.py")
    (on_path / "traced.txt").write_text("\n".join(functions), encoding="utf-8")
    os.environ.update(NO_SANDBOX)
    lines: Lines = {}
    recorded = [job for name in MATRICES for job in choose_recorded(name)]
    for job, part in chain.from_iterable(product([job], list_parts(job.cell)) for job in recorded):
        name = name_part(job.cell, part)
        seen = folder / "lines" / name
        seen.mkdir(parents=True)
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(on_path), os.environ.get("PYTHONPATH", "")))),
            "BREAKAGE_TRACED": str(on_path / "traced.txt"),
            "BREAKAGE_LINES": str(seen),
        }
        options = SHORT if job.kind == "train" else choose_parts([part])
        short = replace(job, command=(*job.command, *options))
        task = prepare(replace(short, env={**job.env, **variables}), folder / "jobs" / name, Environments())
        if isinstance(task, Outcome) or not run_task(task).completed:
            raise NotMeasuredError(f"{name} does not complete with its lines traced")
        lines[name] = read_lines(seen)
        if not lines[name]:
            raise NotMeasuredError(f"{name} executes none of {len(functions)} functions: its lines are not traced")
        print(f"traced: {name}", flush=True)
    (folder / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
    return lines


def read_lines(folder: Path) -> dict[str, list[int]]:
    """The lines of a job's processes, by function."""
    lines: dict[str, set[int]] = {}
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            function, _, number = line.rpartition(":")
            lines.setdefault(function, set()).add(int(number))
    return {function: sorted(numbers) for function, numbers in lines.items()}


def executes(lines: dict[str, list[int]], fault: Fault) -> bool:
    """Whether a cell executes a changed expression: one of its lines; of a default, any line of the function."""
    executed = lines.get(fault.place.id, [])
    if not fault.statement:
        return bool(executed)
    last = fault.mutant.line + fault.mutant.before.count("\n")
    return any(fault.statement <= number <= last for number in executed)
