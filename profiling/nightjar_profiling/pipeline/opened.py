"""Python access to a capture.

In: a capture folder, or a raw trace of any kind that `report` reads. Out: a `Capture`: its tables as lazy Polars
frames, so that a query over a thousand ranks reads only the data it needs, and its manifest and profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from nightjar_profiling.capture_folder.documents import read_json
from nightjar_profiling.capture_folder.manifest import Manifest, read_manifest
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, scan_table
from nightjar_profiling.errors import InputError

if TYPE_CHECKING:
    from nightjar_profiling.analyses.compare.diff import Side

LARGEST_SHOWN_BYTES = 8 << 20  # of a page inside a notebook, which keeps it
SHOWN_LINES = 15


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

    def _repr_html_(self) -> str:
        """The page of the capture, which a notebook shows; of a raw trace, how to make one."""
        if self.profile is None:
            path = escape(str(self.path))
            return f"<p>{path}: a raw trace. Its page: <code>nightjar-profiling report {path}</code></p>"
        page = self.path / "report.html"
        heading = f"<p><b>{self.profile['device_time_ns'] / 1e6:,.3f} ms of device time</b> in {escape(str(page))}</p>"
        if not page.is_file() or page.stat().st_size > LARGEST_SHOWN_BYTES:
            return heading + render_lines(self.profile)
        text = escape(page.read_text("utf-8"))
        frame = 'style="width: 100%; height: 760px; border: 1px solid #ccc" sandbox="allow-scripts"'
        return f'{heading}<iframe title="Profile" {frame} srcdoc="{text}"></iframe>'

    def read(self) -> Tables:
        """Reads all tables into memory, for the analyses."""
        return Tables(**{name: table.collect() for name, table in self.tables.items()})


def render_lines(profile: Mapping[str, Any]) -> str:
    """The hottest lines as a table of HTML, for a page that is too large for a notebook."""
    rows = "".join(
        f"<tr><td>{line['self_ns'] / 1e6:,.3f}</td><td>{line['fraction']:.1%}</td><td>{escape(Path(line['file']).name)}"
        f":{line['line']}</td><td><code>{escape(line['source'] or '')}</code></td></tr>"
        for line in profile["hot_lines"][:SHOWN_LINES]
    )
    return f"<table><tr><th>ms</th><th>share</th><th>line</th><th>source</th></tr>{rows}</table>"


def open_capture(path: str | Path) -> Capture:
    """Opens a capture folder, or reads a raw trace.

    Raises:
        InputError: the path does not exist, is neither, or is damaged.
    """
    from nightjar_profiling.readers.detect import find_kind, find_traces, is_raw
    from nightjar_profiling.report.analyse import SCHEMA

    path = Path(path)
    if is_raw(path):
        from nightjar_profiling.pipeline.ingest import make_tables

        trace, *others = find_traces(path)
        if others:
            hint = f"make one capture of all: nightjar-profiling report {path}; or name one, such as {trace}"
            raise InputError(f"{path}: traces of {1 + len(others)} hosts, expected one.", hint)
        tables = make_tables(find_kind(trace).read(trace))
        lazy = {name: getattr(tables, name).lazy() for name in SCHEMAS}
        return Capture(path=path, tables=lazy, manifest=None, profile=None)
    return Capture(
        path=path,
        manifest=read_manifest(path),
        profile=read_json(path / "profile.json", SCHEMA),
        tables={name: scan_table(path / "tables", name) for name in SCHEMAS},
    )


def read_side(folder: Path) -> Side:
    """A capture as `compare` takes it."""
    from nightjar_profiling.analyses.compare.diff import Side
    from nightjar_profiling.capture_folder import sources
    from nightjar_profiling.capture_folder.tables import read_tables
    from nightjar_profiling.capture_folder.usercode import user_code_test

    manifest = read_manifest(folder)
    return Side(
        tables=read_tables(folder / "tables"),
        is_user_code=user_code_test(manifest.user_code),
        source_of=sources.reader(folder / "sources", manifest.environment.get("cwd")),
        estimate=manifest.backend == "estimate",
    )
