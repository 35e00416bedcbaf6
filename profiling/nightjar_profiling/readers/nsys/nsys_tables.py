"""Tables of an nsys export.

In: an SQLite file, as written by `nsys export --type sqlite`. Out: frames with the requested columns, null if the
export lacks one. Versions are never compared, because tables and columns come and go between them. A table name may
have a version suffix (`NVTX_EVENTS_V2`); the highest version is read.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.errors import InputError

VERSIONED = re.compile(r"(.*?)(?:_V(\d+))?", re.DOTALL)
ROWS_AT_ONCE = 1 << 16
# Raised by sqlite3 for a damaged file; its message may quote bytes that are not valid UTF-8.
NO_DATABASE = (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError)
# SQLite file header: https://www.sqlite.org/fileformat.html#the_database_header
SQLITE, HEADER_BYTES = b"SQLite format 3\0", 32
EXPORT_HINT = "export the .nsys-rep again, or copy the file again"


class NsysTables:
    """The tables of an SQLite export."""

    def __init__(self, path: Path) -> None:
        """Opens the database."""
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
        if size == 0:
            raise InputError(f"{path}: is empty (0 bytes), expected an SQLite export of nsys.", EXPORT_HINT)
        self.path = path
        self.stored: dict[str, str] = {}
        newest: dict[str, int] = {}
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            names = self._list_tables()
        except InputError:
            self.close()
            raise
        for name in names:
            match = VERSIONED.fullmatch(name)
            assert match is not None
            base, version = match[1], int(match[2] or 1)
            if version >= newest.get(base, 0):
                newest[base], self.stored[base] = version, name

    def __contains__(self, table: str) -> bool:
        return table in self.stored

    def read(self, table: str, columns: Mapping[str, type[pl.DataType]], kinds: Iterable[int] = ()) -> pl.DataFrame:
        """Reads a table; empty if the export lacks it.

        Args:
            table: name without the version suffix.
        """
        if table not in self.stored:
            return pl.DataFrame(schema=columns)
        stored = self._list_columns(self.stored[table])
        present = {name: kind for name, kind in columns.items() if name in stored}
        frame = self._read(self.stored[table], present, [kind for kind in kinds if "eventType" in stored])
        absent = [pl.lit(None, kind).alias(name) for name, kind in columns.items() if name not in present]
        return frame.with_columns(absent).select(columns.keys())

    def list_absent(self, table: str, columns: Iterable[str]) -> list[str]:
        """The columns that a table lacks; none if the export has no such table."""
        if table not in self.stored:
            return []
        stored = self._list_columns(self.stored[table])
        return [name for name in columns if name not in stored]

    def close(self) -> None:
        self._connection.close()

    def _list_tables(self) -> list[str]:
        return [str(row[0]) for row in self._select("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]

    def _list_columns(self, stored: str) -> set[str]:
        return {str(row[1]) for row in self._select(f"PRAGMA table_info({_quote(stored)})")}

    def _select(self, statement: str) -> list[tuple[object, ...]]:
        try:
            with closing(self._connection.execute(statement)) as cursor:
                return cursor.fetchall()
        except NO_DATABASE as error:
            raise self.explain_damage(error) from None

    def explain_damage(self, error: Exception) -> InputError:
        """The error for a file that cannot be read; if it is shorter than its header says, with the missing size."""
        with self.path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        if page == 1:  # how the header writes 65536
            page = 65536
        size, whole = self.path.stat().st_size, page * pages
        if not header.startswith(SQLITE) or size >= whole:
            return InputError(f"{self.path}: cannot be read as an nsys export: {error}.", EXPORT_HINT)
        return InputError(f"{self.path}: truncated: {size} of {whole} bytes.", EXPORT_HINT)

    def _read(self, stored: str, columns: Mapping[str, type[pl.DataType]], kinds: list[int]) -> pl.DataFrame:
        if not columns:
            count = self._select(f"SELECT count(*) FROM {_quote(stored)}")[0][0]
            return pl.DataFrame({"": pl.zeros(int(str(count)), eager=True)}).select([])
        statement = f"SELECT {', '.join(map(_quote, columns))} FROM {_quote(stored)}{_where(kinds)}"
        parts = []
        try:
            with closing(self._connection.execute(statement)) as cursor:
                while rows := cursor.fetchmany(ROWS_AT_ONCE):
                    values = zip(*rows, strict=True)
                    parts.append(
                        pl.DataFrame([_column(n, k, v) for (n, k), v in zip(columns.items(), values, strict=True)])
                    )
        except NO_DATABASE as error:
            raise self.explain_damage(error) from None
        if parts:
            return pl.concat(parts)
        return pl.DataFrame(schema=columns)


def _column(name: str, kind: type[pl.DataType], values: tuple[object, ...]) -> pl.Series:
    """A column of SQLite, whose rows may hold values of any type; integer columns take a fast path."""
    if kind == pl.Int64:
        try:
            return pl.Series(name, np.array(values, dtype=np.int64))
        except (TypeError, ValueError):
            pass  # nulls, or text
    if kind == pl.Binary:
        values = tuple(v.encode() if isinstance(v, str) else v for v in values)
    if kind == pl.String:
        values = tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in values)
    return pl.Series(name, values, dtype=kind, strict=False)


def _where(kinds: list[int]) -> str:
    if not kinds:
        return ""
    return f" WHERE eventType IN ({', '.join(map(str, kinds))})"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
