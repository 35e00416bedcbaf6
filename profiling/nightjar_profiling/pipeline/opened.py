"""Python access to a capture.

In: a capture folder, or a raw trace of any kind that `report` reads. Out: a `Capture`: its tables as lazy Polars
frames, so that a query over a thousand ranks reads only the data it needs, and its manifest and profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from nightjar_profiling.capture_folder.documents import read_json
from nightjar_profiling.capture_folder.manifest import Manifest, read_manifest
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, scan_table
from nightjar_profiling.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """An opened capture; `capture.ops`, `capture.frames` and so on are its tables.

    Attributes:
        path: capture folder or raw trace.
        tables: lazy frames by name, with the columns of docs/reference/capture-folder.md.
        manifest: command and environment of the capture; None for a raw trace.
        profile: contents of `profile.json`; None for a raw trace.
    """

    path: Path
    tables: Mapping[str, pl.LazyFrame]
    manifest: Manifest | None
    profile: Mapping[str, Any] | None

    def __getattr__(self, name: str) -> pl.LazyFrame:
        if name not in SCHEMAS:
            raise AttributeError(f"a capture has no table {name!r}: expected one of {', '.join(SCHEMAS)}")
        return self.tables[name]

    def to_arrow(self, name: str) -> Any:
        """A table as `pyarrow.Table` (needs `nightjar-profiling[arrow]`).

        Raises:
            InputError: no such table.
        """
        if name not in SCHEMAS:
            raise InputError(f"{name!r}: no such table, expected one of {', '.join(SCHEMAS)}.")
        return self.tables[name].collect().to_arrow()

    def read(self) -> Tables:
        """Reads all tables into memory, for the analyses."""
        return Tables(**{name: table.collect() for name, table in self.tables.items()})


def open_capture(path: str | Path) -> Capture:
    """Opens a capture folder, or reads a raw trace.

    Raises:
        InputError: the path does not exist, is neither, or is damaged.
    """
    from nightjar_profiling.readers.detect import find_kind, find_trace, is_raw
    from nightjar_profiling.report.analyse import SCHEMA

    path = Path(path)
    if is_raw(path):
        from nightjar_profiling.pipeline.ingest import make_tables

        trace = find_trace(path)
        tables = make_tables(find_kind(trace).read(trace))
        lazy = {name: getattr(tables, name).lazy() for name in SCHEMAS}
        return Capture(path=path, tables=lazy, manifest=None, profile=None)
    return Capture(
        path=path,
        manifest=read_manifest(path),
        profile=read_json(path / "profile.json", SCHEMA),
        tables={name: scan_table(path / "tables", name) for name in SCHEMAS},
    )
