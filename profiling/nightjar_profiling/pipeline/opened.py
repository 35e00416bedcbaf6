"""How does a Python program look into a capture?

In: a capture folder, or a raw trace of any kind that `report` takes. Out: a `Capture`: its tables as lazy Polars
frames, so that a query over a thousand ranks reads only what it asks for, and its manifest and profile.
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
        path: of the folder or raw trace.
        tables: lazy frames by name, with the columns of docs/reference/capture-folder.md.
        manifest: what was captured and with what; None for a raw trace.
        profile: `profile.json` as it is; None for a raw trace.
    """

    path: Path
    tables: Mapping[str, pl.LazyFrame]
    manifest: Manifest | None
    profile: Mapping[str, Any] | None

    def __getattr__(self, name: str) -> pl.LazyFrame:
        if name not in SCHEMAS:
            raise AttributeError(f"a capture has no {name!r}: its tables are {', '.join(SCHEMAS)}")
        return self.tables[name]

    def to_arrow(self, name: str) -> Any:
        """A table as `pyarrow.Table` (needs `nightjar-profiling[arrow]`).

        Raises:
            InputError: there is no such table.
        """
        if name not in SCHEMAS:
            raise InputError(f"{name!r}: no such table: expected one of {', '.join(SCHEMAS)}.")
        return self.tables[name].collect().to_arrow()

    def read(self) -> Tables:
        """All tables in memory, as the analyses take them."""
        return Tables(**{name: table.collect() for name, table in self.tables.items()})


def open_capture(path: str | Path) -> Capture:
    """Opens a capture folder, or reads a raw trace.

    Raises:
        InputError: there is no such path, it is neither, or it is damaged.
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
