"""Addresses and files that are no store: each is refused with a message, and no password is shown."""

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from nightjar_ci.errors import StoreError
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "NIGHTJAR_DATABASE_URL: not a valid database URL"),
        ("postgresql://u:p@h:secret/x@host/d", "NIGHTJAR_DATABASE_URL: not a valid database URL"),
        ("oracle9://x/y", "NIGHTJAR_DATABASE_URL: unknown database"),
        ("mysql://x/y", "the database needs MySQLdb. Hint: sqlite:///FILE or postgresql://"),
        ("sqlite:////proc/none/store.sqlite", "its folder cannot be created"),
        ("postgresql://me:secret@127.0.0.1:1/x?connect_timeout=2", r"postgresql\+psycopg://me:\*\*\*@127.0.0.1"),
    ],
)
def test_a_store_that_cannot_be_reached_is_told_without_its_password(url: str, message: str) -> None:
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=message) as caught:
        open_store(read_settings({"NIGHTJAR_DATABASE_URL": url}))
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_text("garbage " * 1000)
    with pytest.raises(StoreError, match="file is not a database") as caught:
        open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}))
    assert "move the file away" in str(caught.value.hint)


def test_a_store_that_sqlite_cannot_write_is_copied(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").mkdir()
    with pytest.raises(StoreError, match="unable to open database file") as caught:
        open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}))
    assert "copy the folder" in str(caught.value.hint)


def test_a_server_without_a_free_connection_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["sorry, too many clients already", "the database system is starting up"]

    def migrate(engine: object) -> None:
        if said:
            raise OperationalError("connect", {}, Exception(said.pop()))

    monkeypatch.setattr("nightjar_ci.store.store.migrate", migrate)
    open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)})).close()
    assert said == []
