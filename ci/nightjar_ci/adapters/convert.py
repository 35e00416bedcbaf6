"""Conversion of a program's own files to a `nightjar.run/1`, as an adapter describes them.

In: files and an `Adapter`. Out: a `RunRecord` with curves and samples, or an `InputError` that names file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nightjar_ci.adapters.benchmarks import read_asv, read_pytest_benchmark
from nightjar_ci.adapters.records import Record, read_csv, read_json_lines, read_log
from nightjar_ci.adapters.tensorboard import read_events
from nightjar_ci.errors import InputError
from nightjar_ci.formats.adapter import Adapter, Measured
from nightjar_ci.formats.run_record import Curve, Environment, RunRecord, Sample
from nightjar_ci.untrusted.pattern_search import SEARCH_S

_READERS: Mapping[str, Callable[..., Iterator[Record]]] = {
    "jsonl": read_json_lines,
    "csv": read_csv,
    "tensorboard": read_events,
}
_BENCHMARKS = {"pytest-benchmark": read_pytest_benchmark, "asv": read_asv}
_STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The metadata of a result: job, workload, seed, time and environment."""

    job: str
    workload: str
    seed: int
    started_at: str
    duration_s: float
    environment: Environment


@dataclass(slots=True)
class _Column:
    """The values of one measure while reading."""

    name: str
    measured: Measured
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def adapt(
    files: Sequence[Path],
    adapter: Adapter,
    about: About,
    *,
    left_in: Path | None = None,
    search_s: float = SEARCH_S,
) -> RunRecord:
    """Converts the files of a program to a result.

    Args:
        files: the files that it wrote.
        adapter: describes how to read them.
        about: the metadata of the result.
        left_in: folder of the job that wrote the files; None if the user names them.
        search_s: time limit in seconds of a log's pattern per file.

    Raises:
        InputError: a file is damaged, a value is not a number, or the files lack a measure of the adapter.
    """
    curves: tuple[Curve, ...] = ()
    if adapter.format in _BENCHMARKS:
        samples = tuple(sample for path in files for sample in _BENCHMARKS[adapter.format](path, left_in=left_in))
        if not samples:
            raise InputError(f"{_names(files)}: no benchmark has a result.")
    else:
        curves, samples = gather(list(_select(files, adapter, left_in, search_s)), adapter, _names(files))
    return RunRecord.model_validate(
        {
            "schema": "nightjar.run/1",
            "job": about.job,
            "workload": adapter.workload or about.workload,
            "status": "completed",
            "seed": about.seed,
            "started_at": about.started_at,
            "duration_s": about.duration_s,
            "config": {},
            "environment": about.environment,
            "curves": curves,
            "samples": samples,
            "facts": (),
        }
    )


def find_files(folder: Path, adapter: Adapter) -> list[Path]:
    """The files in a job's folder that an adapter reads, sorted by name.

    Raises:
        InputError: there is none.
    """
    files = sorted(path for path in folder.glob(adapter.file) if path.is_file())
    if not files:
        names = ", ".join(sorted(path.name for path in folder.glob("*"))) or "nothing"
        hint = "write the file to {out} in the job's command; {out}/stdout.log is its stdout"
        raise InputError(f"{folder}: no file matches {adapter.file!r}, found {names}.", hint)
    return files


def gather(records: Sequence[Record], adapter: Adapter, source: str) -> tuple[tuple[Curve, ...], tuple[Sample, ...]]:
    """The curves and samples in records.

    A repeated step replaces the earlier one: a program that resumes from a checkpoint repeats steps.

    Args:
        records: in the order the program wrote them.
        adapter: defines the measures.
        source: the files, for messages.

    Raises:
        InputError: a value or step is not a number, a measure has no value, or two measures have the same name.
    """
    counted = adapter.step is None and not any(_STEP in record.fields for record in records)
    curves: dict[str, _Column] = {}
    samples: dict[str, _Column] = {}
    for step, record in enumerate(records):
        for column, value in _matches(record, adapter.curve, curves):
            if not counted:
                step = _read_step(record, adapter.step or _STEP)
            column.steps.append(step)
            column.values.append(value)
        for column, value in _matches(record, adapter.sample, samples):
            column.values.append(value)
    _check_complete(adapter, {id(column.measured) for column in (*curves.values(), *samples.values())}, records, source)
    warmups = {id(sample): sample.warmup for sample in adapter.sample}
    return tuple(_as_curve(column) for column in curves.values()), tuple(
        Sample(
            name=column.name,
            unit=column.measured.unit,
            better=column.measured.better,
            values=tuple(column.values),
            warmup=warmups[id(column.measured)],
        )
        for column in samples.values()
    )


def _select(files: Sequence[Path], adapter: Adapter, left_in: Path | None, search_s: float) -> Iterator[Record]:
    for path in files:
        if adapter.pattern is not None:
            records = read_log(path, adapter.pattern, left_in=left_in, search_s=search_s)
        else:
            records = _READERS[adapter.format](path, left_in=left_in)
        for record in records:
            if all(_equals(record.fields.get(name), value) for name, value in adapter.where.items()):
                yield record


def _equals(value: object, expected: str | int | float | bool) -> bool:
    return value == expected or (isinstance(value, str) and value == str(expected))


def _matches(
    record: Record, measures: Sequence[Measured], columns: dict[str, _Column]
) -> Iterator[tuple[_Column, float]]:
    """The columns of a record's fields, with its values; the first measure that matches a field wins."""
    for name, value in record.fields.items():
        match = next(
            (measure for measure in measures if measure.field == name or fnmatchcase(name, measure.field)), None
        )
        if match is None or value is None or value == "":
            continue
        column_name = name
        if match.name is not None and match.field == name:
            column_name = match.name
        column = columns.setdefault(column_name, _Column(column_name, match))
        if column.measured is not match:
            raise InputError(f"{record.source}: two measures are named {column_name!r}.", "give one a different 'name'")
        yield column, _read_number(record, name, value) * match.factor


def _read_number(record: Record, name: str, value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{record.source}: {name} is {_short(value)}, expected a number.")


def _read_step(record: Record, name: str) -> int:
    value = record.fields.get(name)
    if value is None:
        fields = ", ".join(sorted(record.fields))
        raise InputError(f"{record.source}: no field {name!r}, found {fields}.", "set `step` to the field of the step")
    step = _read_number(record, name, value)
    if not step.is_integer():  # False for inf and nan as well
        raise InputError(f"{record.source}: {name} is {_short(value)}, expected a whole number.")
    return int(step)


def _as_curve(column: _Column) -> Curve:
    by_step = dict(zip(column.steps, column.values, strict=True))
    steps = tuple(sorted(by_step))
    values = tuple(by_step[step] for step in steps)
    return Curve(name=column.name, unit=column.measured.unit, better=column.measured.better, steps=steps, values=values)


def _check_complete(adapter: Adapter, present: set[int], records: Sequence[Record], source: str) -> None:
    missing = next((measure for measure in (*adapter.curve, *adapter.sample) if id(measure) not in present), None)
    if missing is None:
        return
    if not records:
        problem = "no record"
        if adapter.pattern:
            problem = f"no line matches {adapter.pattern!r}"
        if adapter.where:
            problem += f" with {adapter.where}"
        raise InputError(f"{source}: {problem}.")
    fields = sorted({name for record in records for name in record.fields})
    listed = ", ".join(fields[:20])
    if len(fields) > 20:
        listed += f" and {len(fields) - 20} more"
    raise InputError(f"{source}: no value of {missing.field!r} in {len(records)} records, found {listed}.")


def _names(files: Sequence[Path]) -> str:
    if len(files) == 1:
        return str(files[0])
    return f"{files[0]} and {len(files) - 1} more"


def _short(value: Any) -> str:
    text = repr(value)
    if len(text) > 80:
        return text[:77] + "..."
    return text
