"""Conversion of a program's own files to a `nightjar.run/1`, as an adapter describes them.

In: files and an `Adapter`. Out: a `RunRecord` with curves and samples, or an `InputError` that names file and line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath
from statistics import median_low
from typing import Any

from nightjar_ci.adapters.benchmarks import (
    read_asv,
    read_github_action_benchmark,
    read_google_benchmark,
    read_pytest_benchmark,
)
from nightjar_ci.adapters.machine import OF_JAX, read_machine
from nightjar_ci.adapters.records import (
    CutFileError,
    Record,
    Repeated,
    read_csv,
    read_json,
    read_json_lines,
    read_log,
    read_mlperf,
    read_trainer_state,
)
from nightjar_ci.adapters.tensorboard import read_events
from nightjar_ci.environments.current import Interpreter
from nightjar_ci.errors import InputError
from nightjar_ci.formats.adapter import Adapter, Measured
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.globs import matches
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Curve, Environment, Git, RunRecord, Sample
from nightjar_ci.untrusted.pattern_search import SEARCH_S

_READERS: Mapping[str, Callable[..., Iterator[Record]]] = {
    "json": read_json,
    "jsonl": read_json_lines,
    "tensorboard": read_events,
    "trainer-state": read_trainer_state,
    "mlperf": read_mlperf,
}
_BENCHMARKS = {
    "pytest-benchmark": read_pytest_benchmark,
    "asv": read_asv,
    "google-benchmark": read_google_benchmark,
    "github-action-benchmark": read_github_action_benchmark,
}
_STEP = "step"
_Point = tuple[str, int, float]  # file, step, value
_NULL = float("nan")  # the value of JSON's null, told from other NaN by identity
LEAST_TWICE = 3  # steps with two values; fewer may be an accident
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")


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
    points: list[_Point] = field(default_factory=list)


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
        left_in: folder of the job that wrote the files; None if the user names them.
        search_s: time limit in seconds of a log's pattern per file.
    """
    curves: tuple[Curve, ...] = ()
    if adapter.format in _BENCHMARKS:
        samples = tuple(sample for path in files for sample in _BENCHMARKS[adapter.format](path, left_in=left_in))
        if not samples:
            raise InputError(f"{_names(files)}: no benchmark has a result.")
        name, times = Counter(sample.name for sample in samples).most_common(1)[0]
        if times > 1:
            raise InputError(f"{_names(files)}: {times} benchmarks are named {name!r}.", "give them different names")
    else:
        curves, samples = gather(list(_select(files, adapter, left_in, search_s)), adapter, _names(files))
    return make_record(about, curves, samples, adapter.workload)


def make_record(
    about: About, curves: tuple[Curve, ...], samples: tuple[Sample, ...], workload: str | None = None
) -> RunRecord:
    """The result of a program that wrote none; `workload` replaces the one that `about` names."""
    return RunRecord.model_validate(
        {
            "schema": "nightjar.run/1",
            "job": about.job,
            "workload": workload or about.workload,
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
    """The files in a job's folder that an adapter reads, sorted by name."""
    files = sorted(path for path in folder.glob(adapter.file) if path.is_file())
    if not files:
        names = ", ".join(sorted(path.name for path in folder.glob("*"))) or "nothing"
        hint = "write the file to {out} in the job's command; {out}/stdout.log is its stdout"
        raise InputError(f"{folder}: no file matches {adapter.file!r}, found {names}.", hint)
    return files


def gather(records: Sequence[Record], adapter: Adapter, source: str) -> tuple[tuple[Curve, ...], tuple[Sample, ...]]:
    """The curves and samples in records.

    A repeated step replaces the earlier one: a program that resumes from a checkpoint repeats steps.
    """
    counted = adapter.step is None and not any(_STEP in record.fields for record in records)
    curves: dict[str, _Column] = {}
    samples: dict[str, _Column] = {}
    for step, record in enumerate(records):
        file = record.source.rpartition(":")[0]
        for column, value in _matches(record, adapter.curve, curves, adapter.decimal):
            if value is _NULL and record.fields.get(adapter.step or _STEP) is None and not counted:
                continue
            if not counted:
                step = _read_step(record, adapter.step or _STEP)
            column.points.append((file, step, value))
        for column, value in _matches(record, adapter.sample, samples, adapter.decimal):
            column.points.append((file, step, value))
    for columns in (curves, samples):
        for column in [*columns.values()]:
            column.points = _drop_nulls(column.points)
            if not column.points:
                del columns[column.name]
    _check_complete(adapter, {id(column.measured) for column in (*curves.values(), *samples.values())}, records, source)
    warmups = {id(sample): sample.warmup for sample in adapter.sample}
    _check_hosts(curves.values(), source)
    return tuple(_as_curve(column) for column in curves.values()), tuple(
        Sample(
            name=column.name,
            unit=column.measured.unit,
            better=column.measured.better,
            values=tuple(value for _, _, value in column.points),
            warmup=warmups[id(column.measured)],
        )
        for column in samples.values()
    )


def _select(files: Sequence[Path], adapter: Adapter, left_in: Path | None, search_s: float) -> Iterator[Record]:
    for path in files:
        if adapter.pattern is not None:
            records = read_log(path, adapter.pattern, left_in=left_in, search_s=search_s)
        elif adapter.format == "csv":
            records = read_csv(path, left_in=left_in, delimiter=adapter.delimiter)
        else:
            records = _READERS[adapter.format](path, left_in=left_in)
        try:
            for record in records:
                if all(record.fields.get(name) in (value, str(value)) for name, value in adapter.where.items()):
                    yield record
        except CutFileError:
            if path == files[-1]:
                raise  # an earlier file comes from a killed attempt; the next one goes on


def _matches(
    record: Record, measures: Sequence[Measured], columns: dict[str, _Column], decimal: str
) -> Iterator[tuple[_Column, float]]:
    """The columns of a record's fields, with its values; the first measure that matches a field wins."""
    for name, value in record.fields.items():
        match = next((measure for measure in measures if matches(name, measure.field)), None)
        if match is None or value == "":
            continue
        column_name = name
        if match.name is not None and match.field == name:
            column_name = match.name
        column = columns.setdefault(column_name, _Column(column_name, match))
        if column.measured is not match:
            raise InputError(f"{record.source}: two measures are named {column_name!r}.", "give one a different 'name'")
        number = _NULL
        if value is not None:
            number = _read_number(record, name, value, decimal) * match.factor
        yield column, number


def _drop_nulls(points: Sequence[_Point]) -> list[_Point]:
    """Points without the nulls of a measure that was not due; one that breaks the rhythm of the values stays, as NaN.

    JSON has no NaN, and several writers put null in its place; others write null whenever a measure is not due.
    """
    measured = [number for number, (_, _, value) in enumerate(points) if value is not _NULL]
    rhythm = median_low([after - before for before, after in pairwise(measured)] or [math.inf])
    kept, last = [], math.inf  # nulls before the first value are not due
    for number, point in enumerate(points):
        if point[2] is not _NULL:
            last = number
        if number - last >= rhythm or number == last:
            kept.append(point)
    return kept


def _read_number(record: Record, name: str, value: object, decimal: str) -> float:
    hint = None
    if isinstance(value, Repeated):
        hint = "give the columns different names"
    elif isinstance(value, str) and decimal == "," and value.count(",") <= 1 and "." not in value:
        value = value.replace(",", ".")
    elif isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value) and not re.search(r",\d{3}$", value):
        hint = "where a comma is the decimal sign, set decimal = ','"
    if isinstance(value, str | int | float) and not isinstance(value, bool) and "_" not in str(value):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{record.source}: {name} is {_short(value)}, expected a number.", hint)


def _read_step(record: Record, name: str) -> int:
    value = record.fields.get(name)
    if value is None:
        fields = ", ".join(sorted(record.fields))
        raise InputError(f"{record.source}: no field {name!r}, found {fields}.", "set `step` to the field of the step")
    step = _read_number(record, name, value, ".")
    if not step.is_integer():  # False for inf and nan as well
        raise InputError(f"{record.source}: {name} is {_short(value)}, expected a whole number.")
    return int(step)


def _as_curve(column: _Column) -> Curve:
    by_step = {step: value for _, step, value in column.points}
    steps = tuple(sorted(by_step))
    values = tuple(by_step[step] for step in steps)
    return Curve(name=column.name, unit=column.measured.unit, better=column.measured.better, steps=steps, values=values)


def _check_hosts(columns: Iterable[_Column], source: str) -> None:
    """Refuses curves in which half of the steps have several values in one file: two processes wrote it."""
    for column in columns:
        values: dict[tuple[str, int], dict[float, None]] = {}
        folders: dict[int, dict[str, float]] = {}
        for file, step, value in column.points:
            values.setdefault((file, step), {})[value] = None
            folders.setdefault(step, {})[str(PurePath(file).parent)] = value
        apart = [step for step, seen in folders.items() if len(set(seen.values())) > 1]
        if len(apart) >= LEAST_TWICE and 2 * len(apart) >= len(folders):
            one, other, *_ = folders[apart[0]]
            text = f"{source}: {len(apart)} steps have other values of {column.name} in {one} than in {other}."
            raise InputError(text, f"name the files of one folder, as file = '{one}/*'")
        twice = [place for place, seen in values.items() if len(seen) > 1]
        if len(twice) >= LEAST_TWICE and 2 * len(twice) >= len(values):
            first, second, *_ = values[twice[0]]
            text = (
                f"{source}: step {twice[0][1]} has two values of {column.name}, {first:g} and {second:g}, and so have "
            )
            hint = "do steps begin again with each epoch? Leave `step` out, or print a global one. If two processes "
            hint += "write one log, read one of them: where = { host = '0' }, or a field of yours"
            raise InputError(f"{text}{len(twice) - 1} other steps of {len(values)}.", hint)


def _check_complete(adapter: Adapter, present: set[int], records: Sequence[Record], source: str) -> None:
    missing = next((measure for measure in (*adapter.curve, *adapter.sample) if id(measure) not in present), None)
    if missing is None:
        return
    if not records:
        problem = "no record"
        if adapter.pattern:
            problem = f"no line matches '{adapter.pattern}'"
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


def describe(outcome: Outcome, environment: Environment) -> About:
    return About(
        job=outcome.job,
        workload=outcome.cell,
        seed=outcome.replicate or 0,
        started_at=outcome.started_at,
        duration_s=outcome.duration_s,
        environment=environment,
    )


def adapt_job(
    outcome: Outcome,
    adapter: Adapter,
    folder: Path,
    git: Git | None,
    timeout_s: float,
    interpreter: Interpreter | None = None,
) -> None:
    """Writes the result of a job.

    Args:
        timeout_s: its timeout; also limits the search of a pattern.
        interpreter: the Python that it ran in; None for an image.
    """
    environment = read_machine(outcome.environment, git, interpreter, all_packages=True)
    local = {package.name for package in outcome.local_packages} - set(
        OF_JAX
    )  # no index has them: the commit says more
    packages = {name: version for name, version in environment.packages.items() if name not in local}
    about = describe(outcome, environment.model_copy(update={"packages": packages}))
    files, search_s = find_files(folder, adapter), min(timeout_s, SEARCH_S)
    write_json(folder / "result.json", adapt(files, adapter, about, left_in=folder, search_s=search_s))
