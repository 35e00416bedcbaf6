"""Which tables and columns has an nsys export, and what is in them?

In: an SQLite file or a folder of Parquet files, as `nsys export --type sqlite|parquetdir` makes them. Out: frames with
the columns that were asked for, null where the export lacks one. Versions are never compared: tables and columns come
and go between them, and a table may have a suffix (`NVTX_EVENTS_V2`), of which the highest is taken.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.tables import UNREADABLE
from nightjar_profiling.errors import InputError

VERSIONED = re.compile(r"(.*?)(?:_V(\d+))?", re.DOTALL)
ROWS_AT_ONCE = 1 << 16
# What SQLite raises of a damaged file; its own message may quote bytes of it that are no text.
NO_DATABASE = (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError)
# Of an SQLite file: https://www.sqlite.org/fileformat.html#the_database_header
SQLITE, HEADER_BYTES = b"SQLite format 3\0", 32
WHERE_FROM = "export the .nsys-rep again, or copy the file again"


class NsysTables(ABC):
    """An export that can be asked for tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored: dict[str, str] = {}
        newest: dict[str, int] = {}
        for name in self._list_tables():
            found = VERSIONED.fullmatch(name)
            assert found is not None
            base, version = found[1], int(found[2] or 1)
            if version >= newest.get(base, 0):
                newest[base], self.stored[base] = version, name

    def __contains__(self, table: str) -> bool:
        return table in self.stored

    def read(self, table: str, columns: Mapping[str, type[pl.DataType]], kinds: Iterable[int] = ()) -> pl.DataFrame:
        """A table, empty where the export has none.

        Args:
            table: without the suffix of its version.
            columns: names and types.
            kinds: if given, only rows with one of these in `eventType`.

        Raises:
            InputError: the file is damaged.
        """
        if table not in self.stored:
            return pl.DataFrame(schema=columns)
        stored = self._list_columns(self.stored[table])
        there = {name: kind for name, kind in columns.items() if name in stored}
        found = self._read(self.stored[table], there, [kind for kind in kinds if "eventType" in stored])
        absent = [pl.lit(None, kind).alias(name) for name, kind in columns.items() if name not in there]
        return found.with_columns(absent).select(columns.keys())

    def keep_filled(
        self, table: str, columns: Mapping[str, type[pl.DataType]], kinds: Iterable[int] = ()
    ) -> dict[str, type[pl.DataType]]:
        """Those of the columns that hold anything; to look is much faster than to read columns of nulls.

        Raises:
            InputError: the file is damaged.
        """
        if table not in self.stored:
            return {}
        stored = self._list_columns(self.stored[table])
        there = [name for name in columns if name in stored]
        filled = self._find_filled(self.stored[table], there, [k for k in kinds if "eventType" in stored])
        return {name: columns[name] for name in filled}

    def list_absent(self, table: str, columns: Iterable[str]) -> list[str]:
        """Those of the columns that a table of the export lacks; none where it has no such table."""
        if table not in self.stored:
            return []
        stored = self._list_columns(self.stored[table])
        return [name for name in columns if name not in stored]

    def damaged(self, error: Exception) -> InputError:
        """The error of a file that cannot be read."""
        return InputError(f"{self.path}: cannot be read as an nsys export: {error}.", WHERE_FROM)

    @abstractmethod
    def _list_tables(self) -> list[str]: ...

    @abstractmethod
    def _list_columns(self, stored: str) -> set[str]: ...

    @abstractmethod
    def _find_filled(self, stored: str, columns: list[str], kinds: list[int]) -> list[str]: ...

    @abstractmethod
    def _read(self, stored: str, columns: Mapping[str, type[pl.DataType]], kinds: list[int]) -> pl.DataFrame: ...

    def close(self) -> None:  # noqa: B027 - a folder holds nothing open
        """Lets go of the file."""


class SqliteTables(NsysTables):
    """An SQLite export."""

    def __init__(self, path: Path) -> None:
        """Opens it.

        Raises:
            InputError: missing, empty, or no database.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
        if size == 0:
            raise InputError(f"{path}: is empty (0 bytes), expected an SQLite export of nsys.", WHERE_FROM)
        self._base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            super().__init__(path)
        except InputError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection."""
        self._base.close()

    def _list_tables(self) -> list[str]:
        return [str(row[0]) for row in self._select("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]

    def _list_columns(self, stored: str) -> set[str]:
        return {str(row[1]) for row in self._select(f"PRAGMA table_info({_quote(stored)})")}

    def _select(self, statement: str) -> list[tuple[object, ...]]:
        try:
            with closing(self._base.execute(statement)) as cursor:
                return cursor.fetchall()
        except NO_DATABASE as error:
            raise self.damaged(error) from None

    def damaged(self, error: Exception) -> InputError:
        """The error of a file that cannot be read; of a shorter one than its header says, how much is there."""
        with self.path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        size, whole = self.path.stat().st_size, (65536 if page == 1 else page) * pages
        if not header.startswith(SQLITE) or size >= whole:
            return super().damaged(error)
        return InputError(f"{self.path}: truncated: {size} of {whole} bytes are there.", WHERE_FROM)

    def _find_filled(self, stored: str, columns: list[str], kinds: list[int]) -> list[str]:
        if not columns:
            return []
        asked = ", ".join(f"max({_quote(name)} IS NOT NULL)" for name in columns)
        found = self._select(f"SELECT {asked} FROM {_quote(stored)}{_where(kinds)}")[0]
        return [name for name, filled in zip(columns, found, strict=True) if filled]

    def _read(self, stored: str, columns: Mapping[str, type[pl.DataType]], kinds: list[int]) -> pl.DataFrame:
        if not columns:
            count = self._select(f"SELECT count(*) FROM {_quote(stored)}")[0][0]
            return pl.DataFrame({"": pl.zeros(int(str(count)), eager=True)}).select([])
        statement = f"SELECT {', '.join(map(_quote, columns))} FROM {_quote(stored)}{_where(kinds)}"
        parts = []
        try:
            with closing(self._base.execute(statement)) as cursor:
                while rows := cursor.fetchmany(ROWS_AT_ONCE):
                    values = zip(*rows, strict=True)
                    parts.append(
                        pl.DataFrame([_column(n, k, v) for (n, k), v in zip(columns.items(), values, strict=True)])
                    )
        except NO_DATABASE as error:
            raise self.damaged(error) from None
        return pl.concat(parts) if parts else pl.DataFrame(schema=columns)


def _column(name: str, kind: type[pl.DataType], values: tuple[object, ...]) -> pl.Series:
    """A column of SQLite, in which any row may hold a value of any kind; one of integers is mostly made at once."""
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
    return f" WHERE eventType IN ({', '.join(map(str, kinds))})" if kinds else ""


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class ParquetTables(NsysTables):
    """A folder of Parquet files, one per table."""

    def _list_tables(self) -> list[str]:
        return sorted(path.stem for path in self.path.glob("*.parquet"))

    def _list_columns(self, stored: str) -> set[str]:
        try:
            return set(pl.read_parquet_schema(self._file(stored)))
        except UNREADABLE as error:
            raise self._damaged_part(stored, error) from None

    def _file(self, stored: str) -> Path:
        return self.path / f"{stored}.parquet"

    def _damaged_part(self, stored: str, error: Exception) -> InputError:
        file = self._file(stored)
        return InputError(f"{file}: not Parquet ({file.stat().st_size} bytes): {error}.", WHERE_FROM)

    def _find_filled(self, stored: str, columns: list[str], kinds: list[int]) -> list[str]:
        if not columns:
            return []
        try:
            found = pl.scan_parquet(self._file(stored))
            if kinds:
                found = found.filter(pl.col("eventType").is_in(kinds))
            filled = found.select(pl.col(columns).is_not_null().any()).collect()
        except UNREADABLE as error:
            raise self._damaged_part(stored, error) from None
        return [name for name in columns if filled[name].item()]

    def _read(self, stored: str, columns: Mapping[str, type[pl.DataType]], kinds: list[int]) -> pl.DataFrame:
        try:
            found = pl.scan_parquet(self._file(stored))
            if kinds:
                found = found.filter(pl.col("eventType").is_in(kinds))
            cast = [_as(name, kind) for name, kind in columns.items()]
            return found.select(cast).collect()
        except UNREADABLE as error:
            raise self._damaged_part(stored, error) from None


def _as(name: str, kind: type[pl.DataType]) -> pl.Expr:
    """A column in the wanted type; an id of 64 bits may be stored without a sign."""
    return pl.col(name).cast(kind, strict=False) if kind != pl.Int64 else pl.col(name).cast(kind, wrap_numerical=True)
