"""What is the result of a program that writes none? Its files, read by an adapter, become a `nightjar.run/1`.

In: files and an `Adapter`. Out: curves and samples, then a `RunRecord`; or an `InputError` that names file and line.
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
    """What a result says besides its measures: who ran, when and where."""

    job: str
    workload: str
    seed: int
    started_at: str
    duration_s: float
    environment: Environment


@dataclass(slots=True)
class _Column:
    """The values of one measure, as they are read."""

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
    """The result that the files of a program stand for.

    Args:
        files: what it wrote.
        adapter: how that is read.
        about: what the result says besides.
        left_in: folder of the job that left the files; None where the user names them.
        search_s: seconds that the pattern of a log may take for each file.

    Raises:
        InputError: a file is damaged, a value is no number, or a measure of the adapter is nowhere in the files.
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
    """The files of an adapter in a job's folder, by name.

    Raises:
        InputError: there is none.
    """
    found = sorted(path for path in folder.glob(adapter.file) if path.is_file())
    if not found:
        there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        hint = "let the command write below {out}: its stdout is stdout.log there"
        raise InputError(f"{folder}: no file like {adapter.file!r}, found {', '.join(there) or 'nothing'}.", hint)
    return found


def gather(records: Sequence[Record], adapter: Adapter, source: str) -> tuple[tuple[Curve, ...], tuple[Sample, ...]]:
    """The curves and samples of records.

    A step that comes again replaces the one before: a program that resumed from a checkpoint repeats some.

    Args:
        records: in the order of the program.
        adapter: says what is measured.
        source: the files, for messages.

    Raises:
        InputError: a value or step is no number, a measure has no value, or a name stands for two measures.
    """
    counted = adapter.step is None and not any(_STEP in record.fields for record in records)
    curves: dict[str, _Column] = {}
    samples: dict[str, _Column] = {}
    for number, record in enumerate(records):
        for column, value in _matches(record, adapter.curve, curves):
            column.steps.append(number if counted else _read_step(record, adapter.step or _STEP))
            column.values.append(value)
        for column, value in _matches(record, adapter.sample, samples):
            column.values.append(value)
    _check_found(adapter, {id(one.measured) for one in (*curves.values(), *samples.values())}, records, source)
    warmups = {id(one): one.warmup for one in adapter.sample}
    return tuple(_as_curve(one) for one in curves.values()), tuple(
        Sample(
            name=one.name,
            unit=one.measured.unit,
            better=one.measured.better,
            values=tuple(one.values),
            warmup=warmups[id(one.measured)],
        )
        for one in samples.values()
    )


def _select(files: Sequence[Path], adapter: Adapter, left_in: Path | None, search_s: float) -> Iterator[Record]:
    for path in files:
        if adapter.pattern is not None:
            records = read_log(path, adapter.pattern, left_in=left_in, search_s=search_s)
        else:
            records = _READERS[adapter.format](path, left_in=left_in)
        for record in records:
            if all(_same(record.fields.get(name), value) for name, value in adapter.where.items()):
                yield record


def _same(found: object, wanted: str | int | float | bool) -> bool:
    return found == wanted or (isinstance(found, str) and found == str(wanted))


def _matches(
    record: Record, measures: Sequence[Measured], columns: dict[str, _Column]
) -> Iterator[tuple[_Column, float]]:
    """The columns that a record adds to, with its values; of two measures that match a field the first counts."""
    for name, value in record.fields.items():
        found = next((one for one in measures if one.field == name or fnmatchcase(name, one.field)), None)
        if found is None or value is None or value == "":
            continue
        called = found.name if found.name is not None and found.field == name else name
        column = columns.setdefault(called, _Column(called, found))
        if column.measured is not found:
            raise InputError(f"{record.place}: {called!r} is the name of two measures.", "give one another 'name'")
        yield column, _read_number(record, name, value) * found.factor


def _read_number(record: Record, name: str, value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{record.place}: {name} is {_short(value)}, expected a number.")


def _read_step(record: Record, name: str) -> int:
    value = record.fields.get(name)
    if value is None:
        known = ", ".join(sorted(record.fields))
        raise InputError(f"{record.place}: no field {name!r}, found {known}.", "`step` names the field of the step")
    step = _read_number(record, name, value)
    if not step.is_integer():  # False for inf and nan as well
        raise InputError(f"{record.place}: {name} is {_short(value)}, expected a whole number.")
    return int(step)


def _as_curve(column: _Column) -> Curve:
    by_step = dict(zip(column.steps, column.values, strict=True))
    steps = tuple(sorted(by_step))
    values = tuple(by_step[step] for step in steps)
    return Curve(name=column.name, unit=column.measured.unit, better=column.measured.better, steps=steps, values=values)


def _check_found(adapter: Adapter, found: set[int], records: Sequence[Record], source: str) -> None:
    missing = next((one for one in (*adapter.curve, *adapter.sample) if id(one) not in found), None)
    if missing is None:
        return
    if not records:
        what = f"no line matches {adapter.pattern!r}" if adapter.pattern else "no record"
        raise InputError(f"{source}: {what}{' with ' + str(adapter.where) if adapter.where else ''}.")
    known = sorted({name for record in records for name in record.fields})
    shown = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    raise InputError(f"{source}: no value of {missing.field!r} in {len(records)} records, found {shown}.")


def _names(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
