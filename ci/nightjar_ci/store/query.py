"""Read-only SQL queries of the store.

In: the settings and one SELECT, or the name of a table or view. Out: a Polars frame, or Parquet files of whole tables.
The connection cannot write. SQLite: the file is opened read-only, and an authorizer allows nothing but SELECT.
PostgreSQL: a read-only transaction, and the extended protocol, which accepts only a single statement.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url

from nightjar_ci.errors import InputError, StoreError
from nightjar_ci.settings import Settings
from nightjar_ci.store.store import open_store

if TYPE_CHECKING:
    import polars as pl

NAMED = ("night", "history", "outcomes", "verdicts", "series", "environment", "run", "measure")
EXPORTED = ("night", "outcomes", "history", "verdicts")
_ROWS_A_FILE = 500_000
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


def query(settings: Settings, sql: str) -> pl.DataFrame:
    """The answer to one SELECT, or all rows of a table or view that is named alone.

    Raises:
        InputError: it is no single SELECT, or the database does not understand it, or Polars is not installed.
        StoreError: the store cannot be read.
    """
    _check_polars()
    import polars as pl

    open_store(settings).close()  # makes or migrates it where needed
    with _asked(settings, _as_select(sql)) as (names, pieces):
        rows = [row for piece in pieces for row in piece]
        try:
            return pl.DataFrame(rows, schema=list(names), orient="row", infer_schema_length=None, strict=False)
        except (pl.exceptions.PolarsError, TypeError) as error:
            raise InputError(f"the answer is no table: {error}.", "give every column a name of its own") from None


def export(settings: Settings, folder: Path) -> Iterator[Path]:
    """Writes nights, outcomes, history and verdicts as Parquet: `FOLDER/<table>/part-00000.parquet`, ...

    Raises:
        InputError: a table's folder is there already, or Polars is not installed.
        StoreError: the store cannot be read.
    """
    _check_polars()
    import polars as pl

    open_store(settings).close()
    for name in EXPORTED:
        if (folder / name).exists():
            raise InputError(f"{folder / name} is there already.", "name another folder")
    for name in EXPORTED:
        (folder / name).mkdir(parents=True)
        with _asked(settings, _as_select(name)) as (names, pieces):
            kinds = {"value": pl.Float64(), "replicate": pl.Int64(), "attempt": pl.Int64(), "number": pl.Int64()}
            schema = {column: kinds.get(column, pl.String()) for column in names}
            for number, rows in enumerate(pieces):
                path = folder / name / f"part-{number:05d}.parquet"
                texts = [tuple(one if not isinstance(one, dict | list) else str(one) for one in row) for row in rows]
                pl.DataFrame(texts, schema=schema, orient="row").write_parquet(path)
                yield path


def _check_polars() -> None:
    """Raises an `InputError` that names the extra where Polars is not installed."""
    try:
        import polars  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("queries and exports need Polars.", "pip install 'nightjar-ci[query]'") from None


def _as_select(sql: str) -> str:
    text = sql.strip().rstrip(";").rstrip()
    if text in NAMED:
        return f"SELECT * FROM {text}"
    if re.fullmatch(r"\w*", text):
        raise InputError(f"no table {text!r}: expected a SELECT, or one of {', '.join(NAMED)}.")
    return text


@contextmanager
def _asked(settings: Settings, sql: str) -> Iterator[tuple[Sequence[str], Iterator[list[tuple[Any, ...]]]]]:
    """The names of the columns, and the rows in pieces."""
    url = make_url(settings.database_url)
    ask = _ask_sqlite if url.get_backend_name() == "sqlite" else _ask_postgresql
    with ask(url, sql) as cursor:
        if cursor.description is None:
            raise InputError(f"{sql[:80]!r} has no answer: expected a SELECT.")
        names = [column[0] for column in cursor.description]
        yield names, iter(lambda: cursor.fetchmany(_ROWS_A_FILE), [])


@contextmanager
def _ask_sqlite(url: URL, sql: str) -> Iterator[Any]:
    def allow(action: int, *_: str | None) -> int:
        return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY

    with closing(sqlite3.connect(f"file:{quote(url.database or '')}?mode=ro", uri=True, timeout=30)) as connection:
        connection.set_authorizer(allow)
        try:
            yield connection.execute(sql)
        except sqlite3.Error as error:
            refused = "not authorized" in str(error) or "one statement" in str(error)
            hint = "the store is only read: one SELECT, or WITH ... SELECT" if refused else None
            raise InputError(f"the store refuses {sql[:80]!r}: {error}.", hint) from None


@contextmanager
def _ask_postgresql(url: URL, sql: str) -> Iterator[Any]:
    try:
        import psycopg
    except ModuleNotFoundError:
        raise StoreError("the database needs psycopg.", "pip install 'nightjar-ci[postgres]'") from None

    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(plain, options="-c default_transaction_read_only=on") as connection:
            connection.execute("SELECT 1")  # from here on the transaction cannot be made to write
            with connection.cursor() as cursor:
                yield cursor.execute(sql, prepare=True)
    except psycopg.OperationalError as error:
        raise StoreError(f"{url.render_as_string(hide_password=True)}: {str(error).strip()}.") from None
    except psycopg.Error as error:
        raise InputError(f"the store refuses {sql[:80]!r}: {str(error).strip()}.") from None
