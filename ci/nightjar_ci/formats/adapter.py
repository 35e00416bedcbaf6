"""Adapters for the output of other programs: `nightjar.adapter/1`, or the `adapter` of a matrix job.

In: TOML (docs/reference/adapters.md). Out: an `Adapter`: the format, the files, and which of their fields are curves
and samples.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightjar_ci.formats.documents import read_document
from nightjar_ci.formats.run_record import Better

ADAPTER_SCHEMA = "nightjar.adapter/1"
Format = Literal["log", "jsonl", "csv", "tensorboard", "pytest-benchmark", "asv"]
BENCHMARKS: tuple[Format, ...] = ("pytest-benchmark", "asv")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measured(_Strict):
    """A field that is measured.

    Attributes:
        field: its name in the file, or a glob of names.
        name: what it is called here; its name in the file where absent.
        unit: of the values after `factor`.
        better: which direction is good.
        factor: what the values are multiplied with, such as 1e-3 where the file has milliseconds.
    """

    field: str
    name: str | None = None
    unit: str = ""
    better: Better = "lower"
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class MeasuredSample(Measured):
    """A field whose values are repeated measurements of one quantity.

    Attributes:
        warmup: how many leading values do not count.
    """

    warmup: Annotated[int, Field(ge=0)] = 0


class Adapter(_Strict):
    """How the files of a program become a result.

    Attributes:
        format: what the files are.
        file: glob of files in the job's folder; of several the records are read one after the other, by name.
        pattern: for `log`: a regular expression with a named group for each field; a group named `json` is parsed as a
            JSON object, whose keys are the fields. Lines that it does not match are passed over.
        step: the field that holds the step. Where absent it is `step`; where no record has one, records are counted.
        where: fields that must have these values for a record to count.
        workload: name of what ran; the job's cell where absent.
        curve: values by step.
        sample: repeated measurements.
    """

    format: Format
    file: str = "stdout.log"
    pattern: str | None = None
    step: str | None = None
    where: dict[str, str | int | float | bool] = {}
    workload: str | None = None
    curve: tuple[Measured, ...] = ()
    sample: tuple[MeasuredSample, ...] = ()

    @model_validator(mode="after")
    def _fits_its_format(self) -> Adapter:
        if (self.format == "log") != (self.pattern is not None):
            raise ValueError("format = 'log' needs a pattern, and no other format has one")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groupindex
            except re.error as error:
                raise ValueError(f"pattern is no regular expression: {error}") from None
            if not groups:
                raise ValueError("pattern needs a named group for each field, such as (?P<loss>[0-9.]+)")
        if self.format in BENCHMARKS:
            if self.curve or self.sample or self.where or self.step is not None:
                raise ValueError(
                    f"format = {self.format!r} names its measures itself: leave out curve, sample, where, step"
                )
        elif not self.curve and not self.sample:
            raise ValueError("at least one [[curve]] or [[sample]] is needed")
        if Path(self.file).is_absolute() or ".." in Path(self.file).parts:
            raise ValueError(f"file {self.file!r} must be inside the job's folder")
        return self


class AdapterFile(Adapter):
    """An adapter in a file of its own: `nightjar.adapter/1`."""

    schema_: Annotated[Literal["nightjar.adapter/1"], Field(alias="schema")]


def read_adapter(path: Path) -> AdapterFile:
    """Reads an adapter.

    Raises:
        InputError: the file is missing, not TOML, of a foreign schema, or has a wrong key or value.
    """
    return read_document(path, AdapterFile, ADAPTER_SCHEMA)
