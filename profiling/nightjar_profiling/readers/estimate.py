"""Reader of estimates: modelled time lines of programs that were compiled but not run.

In: a `*.estimate.zip`: `program.hlo.pb`, an HloProto, and `timeline.json`, `nightjar.estimate/1` (docs/reference/
capture-folder.md). Out: a `Raw` with one execution on one device, in which every op is a run of an instruction, timed
by a model of the device. Nothing was measured, and a warning says so on every page of the capture.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from nightjar_profiling.capture_folder.tables import fill_table
from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo import read_program
from nightjar_profiling.readers.raw import Raw

SCHEMA = "nightjar.estimate/1"
PROGRAM_ID = 1
COLUMNS = ("instruction", "stream", "start_ns", "duration_ns")
WARNING = "Estimate, not a measurement: every time comes from a model of {device}; nothing ran."


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads an estimate."""
    try:
        with zipfile.ZipFile(path) as archive:
            hlo, text = archive.read("program.hlo.pb"), archive.read("timeline.json")
        timeline = json.loads(text)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{path}: not a valid estimate: {error}.", "run `nightjar-models compile` again") from None
    if isinstance(timeline, dict):
        schema = timeline.get("schema")
    else:
        schema = None
    if schema != SCHEMA:
        raise InputError(f"{path}: schema is {schema!r}, expected {SCHEMA!r}.", "a newer Nightjar may have written it")
    program = read_program(hlo, PROGRAM_ID, str(path))
    columns: dict[str, list[Any]] = {name: _column(path, timeline, name) for name in COLUMNS}
    unknown = next((name for name in columns["instruction"] if name not in program.instructions), None)
    if unknown is not None:
        raise InputError(f"{path}: the time line names instruction {unknown!r}, which the program lacks.")
    height = len(columns["instruction"])
    common = {"rank": rank, "device": 0, "program_id": PROGRAM_ID, "execution": 0}
    ops = fill_table("ops", height, **common, **columns, kernel=columns["instruction"], kind="kernel")
    executions = fill_table("executions", 1, **common, start_ns=0, duration_ns=int(timeline["step_ns"]))
    return Raw(
        tables={"ops": ops, "executions": executions},
        programs={PROGRAM_ID: program},
        warnings=(WARNING.format(device=timeline.get("device", "a device")),),
    )


def _column(path: Path, timeline: dict[str, Any], name: str) -> list[Any]:
    values = timeline.get(name)
    kind = int if name.endswith("_ns") else str
    if not isinstance(values, list) or len(values) != len(timeline.get("instruction", [])):
        raise InputError(f"{path}: timeline.json: {name!r} is not a list as long as 'instruction'.")
    wrong = next((value for value in values if type(value) is not kind), None)
    if wrong is not None or type(timeline.get("step_ns")) is not int:
        raise InputError(f"{path}: timeline.json: {name!r} holds {wrong!r}, expected {kind.__name__}.")
    return values
