"""Adapters for the output of other programs: `nightjar.adapter/1`, or the `adapter` of a matrix job.

In: TOML (docs/reference/adapters.md). Out: an `Adapter`: the format, the files, and which of their fields are curves
and samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.run_record import Better

ADAPTER_SCHEMA = "nightjar.adapter/1"
Records = Literal["log", "json", "jsonl", "csv", "tensorboard", "trainer-state", "mlperf"]
Benchmark = Literal["pytest-benchmark", "asv", "google-benchmark", "github-action-benchmark"]
Format = Literal[Records, Benchmark]
BENCHMARKS: tuple[Benchmark, ...] = get_args(Benchmark)


class Measured(StrictModel):
    """A field that holds measurements.

    Attributes:
        field: its name in the file, or a glob of names.
        name: the metric's name in results; default: the field's name.
        unit: of the values after `factor`.
        factor: multiplied with every value, such as 1e-3 for a file in milliseconds.
    """

    field: str
    name: str | None = None
    unit: str = ""
    better: Better = "lower"
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class MeasuredSample(Measured):
    """A field with repeated measurements of one quantity.

    Attributes:
        warmup: number of leading values to ignore.
    """

    warmup: Annotated[int, Field(ge=0)] = 0


class Adapter(StrictModel):
    """How a program's files become a result.

    Attributes:
        file: glob of files in the job's folder; several files are read in order of their names.
        pattern: for `log`: a regular expression with a named group for each field; a group named `json` is parsed as a
            JSON object, whose keys are the fields. Lines that do not match are skipped.
        step: the field that holds the step; default: `step`. If no record has it, records are counted.
        delimiter: for `csv`: the separator of cells; default: read from the header.
        decimal: the decimal sign of numbers in texts.
        where: only records with these field values are used.
        workload: name of the program; default: the job's cell.
    """

    format: Format
    file: str = "stdout.log"
    pattern: str | None = None
    step: str | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    decimal: Literal[".", ","] = "."
    where: Mapping[str, str | int | float | bool] = {}
    workload: str | None = None
    curve: tuple[Measured, ...] = ()
    sample: tuple[MeasuredSample, ...] = ()

    @model_validator(mode="after")
    def _fits_its_format(self) -> Adapter:
        if (self.format == "log") != (self.pattern is not None):
            raise ValueError("format = 'log' needs a pattern, and no other format has one")
        if self.delimiter is not None and self.format != "csv":
            raise ValueError("delimiter belongs to format = 'csv'")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as error:
                raise ValueError(f"pattern is not a valid regular expression: {error}") from None
            if not groups:
                raise ValueError("pattern needs a named group for each field, such as (?P<loss>[0-9.]+)")
        if self.format in BENCHMARKS:
            if self.curve or self.sample or self.where or self.step is not None:
                raise ValueError(
                    f"format = {self.format!r} names its metrics itself: leave out curve, sample, where, step"
                )
        elif not self.curve and not self.sample:
            raise ValueError("at least one [[curve]] or [[sample]] is needed")
        if Path(self.file).is_absolute() or ".." in Path(self.file).parts:
            raise ValueError(f"file {self.file!r} must be inside the job's folder")
        return self


class AdapterFile(Adapter):
    """An adapter in its own file: `nightjar.adapter/1`."""

    schema_: Annotated[Literal["nightjar.adapter/1"], Field(alias="schema")]


def read_adapter(path: Path) -> AdapterFile:
    return read_document(path, AdapterFile, ADAPTER_SCHEMA)
