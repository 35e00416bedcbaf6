"""Read-only SQL queries of the store.

In: the settings and one SELECT, or the name of a table or view. Out: a Polars frame. The connection cannot write.
SQLite: the file is opened read-only, and an authorizer allows nothing but SELECT; a store of this version is never
migrated, so that one on a read-only disk answers too. PostgreSQL: the statement becomes a cursor's, which can only be a
SELECT (not COPY, which writes files and starts programs), in a read-only transaction; a superuser's connection acts as
pg_read_all_data, which may not call the functions that reach the server's files. Functions that would change that role
again, or hide SQL from this check in a text, are refused by name.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url

from nightjar_ci.errors import InputError, StoreError
from nightjar_ci.settings import Settings
from nightjar_ci.store.store import open_store
from nightjar_ci.store.tables import VERSION

if TYPE_CHECKING:
    import polars as pl

NAMED = ("night", "history", "outcomes", "verdicts", "series", "environment", "run", "measure")
_READ_ONLY = "queries are read-only: one SELECT, or WITH ... SELECT"
Answer: TypeAlias = tuple[Sequence[str], list[tuple[Any, ...]]]  # names of the columns, and the rows
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

# PostgreSQL's functions that change a setting, such as the role, and functions that run a text as SQL, in which a name
# can be put together from pieces: its own and its extensions'. `U&"..."` writes a name in numbers.
_NOT_IN_QUERIES = re.compile(
    r"\b(set_config|\w+_to_xml\w*|ts_stat|ts_rewrite|dblink\w*|crosstab\w*|connectby|xpath_table)\b|\bU&", re.IGNORECASE
)


def query(settings: Settings, sql: str) -> pl.DataFrame:
    try:
        import polars as pl
    except ModuleNotFoundError:
        raise InputError("queries need Polars.", "pip install 'nightjar-ci[query]'") from None

    _make_or_migrate(settings)
    url, select = make_url(settings.database_url), _as_select(sql)
    if url.get_backend_name() == "sqlite":
        names, rows = _ask_sqlite(url, select)
    else:
        names, rows = _ask_postgresql(url, select)
    try:
        return pl.DataFrame(rows, schema=list(names), orient="row", infer_schema_length=None, strict=False)
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise InputError(f"the result is not a table: {error}.", "give every column a unique name") from None


def _as_select(sql: str) -> str:
    text = sql.strip().rstrip(";").rstrip()
    if text in NAMED:
        return f"SELECT * FROM {text}"
    if re.fullmatch(r"\w*", text):
        raise InputError(f"no table {text!r}: expected a SELECT, or one of {', '.join(NAMED)}.")
    return text


def _make_or_migrate(settings: Settings) -> None:
    """Makes the store, or migrates it, unless it has this program's version already: then nothing is written."""
    url = make_url(settings.database_url)
    if url.get_backend_name() == "sqlite" and _read_sqlite_version(Path(url.database or "")) == VERSION:
        return
    open_store(settings).close()


def _read_sqlite_version(file: Path) -> str | None:
    """The version of a store in a file; None if there is none, or it cannot be read."""
    if not file.is_file():
        return None
    try:
        with closing(_open_sqlite(file)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])


def _open_sqlite(file: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    SQLite in WAL mode makes a file next to the database even to read it. In a folder that refuses this, the database is
    opened as immutable, unless a log next to it shows that somebody was writing.
    Source: sqlite.org/wal.html, "Read-Only Databases".
    """
    address = f"file:{quote(str(file))}"
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=30)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        log = file.with_name(f"{file.name}-wal")
        if log.is_file() and log.stat().st_size:
            raise
        return sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True, timeout=30)
    return connection


def _ask_sqlite(url: URL, sql: str) -> Answer:
    def allow(action: int, *_: str | None) -> int:
        if action in _ALLOWED:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    with closing(_open_sqlite(Path(url.database or ""))) as connection:
        connection.set_authorizer(allow)
        # Called every N instructions of its machine; a signal is handled there, and ends the query.
        connection.set_progress_handler(lambda: False, 100_000)
        try:
            cursor = connection.execute(sql)
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except sqlite3.Error as error:
            hint = None
            if "interrupted" in str(error):
                raise KeyboardInterrupt from None
            if "not authorized" in str(error) or "one statement" in str(error):
                hint = _READ_ONLY
            raise InputError(f"the store refuses {sql[:80]!r}: {error}.", hint) from None


def _ask_postgresql(url: URL, sql: str) -> Answer:
    try:
        import psycopg
    except ModuleNotFoundError:
        raise StoreError("the database needs psycopg.", "pip install 'nightjar-ci[postgres]'") from None

    if name := _NOT_IN_QUERIES.search(sql):
        raise InputError(
            f"the store refuses {name[0]!r} in a query: it changes settings, or runs a text as SQL.", _READ_ONLY
        )
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(plain, options="-c default_transaction_read_only=on") as connection:
            connection.execute("SELECT 1")  # from here on the transaction cannot be made to write
            if connection.info.parameter_status("is_superuser") == "on":
                connection.execute("SET LOCAL ROLE pg_read_all_data")
            # A prepared statement is a single one, and a cursor's is a SELECT or VALUES.
            connection.execute(f"DECLARE answer NO SCROLL CURSOR FOR {sql}".encode(), prepare=True)
            cursor = connection.execute("FETCH ALL FROM answer")
            return [column.name for column in cursor.description or ()], cursor.fetchall()
    except psycopg.OperationalError as error:
        raise StoreError(f"{url.render_as_string(hide_password=True)}: {str(error).strip()}.") from None
    except psycopg.Error as error:
        raise InputError(f"the store refuses {sql[:80]!r}: {str(error).strip()}.", _READ_ONLY) from None
