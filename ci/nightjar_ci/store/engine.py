"""Database engines that two processes can use at once: SQLite in WAL mode, or PostgreSQL.

In: a database URL. Out: an engine whose tables have this program's version.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select, table, text
from sqlalchemy import column as sql_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from nightjar_ci.errors import StoreError
from nightjar_ci.store.tables import VERSION

_URL_HINT = "sqlite:///FILE or postgresql://USER@HOST/DATABASE, a / in a password written %2F"
BUSY_S = 30.0  # much longer than any transaction here
BUSY = ("connection slots are reserved", "too many", "starting up", "shutting down")  # errors of PostgreSQL that pass
READS_ONLY = "nightjar_reads_only"  # execution option of a connection that takes no lock for writing
_MIGRATION_LOCK = 6_548_517  # any number, the same for all versions: PostgreSQL's advisory lock of a migration


def open_engine(database_url: str) -> Engine:
    """An engine for a database; nothing is read yet."""
    try:
        url = make_url(database_url)
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() != "sqlite":
            return create_engine(url, pool_pre_ping=True)
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": BUSY_S})
    except NoSuchModuleError as error:
        raise StoreError(f"NIGHTJAR_DATABASE_URL: unknown database: {error}.", _URL_HINT) from None
    except (ArgumentError, ValueError):  # its text may hold a part of the password
        raise StoreError("NIGHTJAR_DATABASE_URL: not a valid database URL.", _URL_HINT) from None
    except ModuleNotFoundError as error:
        hint = "pip install 'nightjar-ci[postgres]'" if url.get_backend_name() == "postgresql" else _URL_HINT
        raise StoreError(f"the database needs {error.name}.", hint) from None
    except OSError as error:
        raise StoreError(f"{database_url}: its folder cannot be created: {error}.") from None
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_immediately)
    return engine


def migrate(engine: Engine) -> None:
    """Migrates the tables to this program's version; a second process waits."""
    with engine.begin() as connection:
        if _version(connection) == VERSION:
            return
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        version = _version(connection)
        if version == VERSION:
            return
        from alembic import command
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
        if version is not None and version not in revisions:
            address = engine.url.render_as_string(hide_password=True)
            problem = f"{address}: the store has version {version!r}, this program expects {VERSION!r}"
            hint = "upgrade nightjar-ci"
            if version < VERSION:
                hint = "it is older than 0.1.0: move it away, and `nightjar-ci store --import NIGHT` each night"
            raise StoreError(f"{problem}.", hint)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def describe_failure(url: URL, error: Exception) -> StoreError:
    """The error of a database failure, with its cause and a hint."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    address = url.render_as_string(hide_password=True)
    hint = None
    if any(sign in str(error) for sign in ("is full", "No space left", "disk I/O error")):
        hint = "is the disk full? Make room; nothing that was stored is lost. A shared file system without locks, or "
        hint += "several machines at once, want NIGHTJAR_DATABASE_URL"
    elif any(sign in lines[0] for sign in ("malformed", "not a database")):
        hint = "move the file away: the next `nightjar-ci gate NIGHT` stores that night and those beside it again"
    elif any(sign in lines[0] for sign in ("unable to open", "readonly")):
        hint = "SQLite writes beside its file even to read: copy the folder, and name the copy by NIGHTJAR_STATE_DIR"
    elif "connection" in lines[0]:
        hint = "nights stay in their folders: `nightjar-ci gate NIGHT` stores and judges one when the database answers"
    return StoreError(f"{address}: {lines[0]}.", hint)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(select(sql_column("version_num")).select_from(table("alembic_version"))).scalar()


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # The driver must not open transactions on its own: docs.sqlalchemy.org, SQLite, "Serializable isolation"
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switches a database to WAL; SQLite does not wait for another process that does so at the same time."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_immediately(connection: Connection) -> None:
    # A transaction that reads first and then writes would fail if another process wrote in between; one that only reads
    # sees the last committed state.
    reads = connection.get_execution_options().get(READS_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
