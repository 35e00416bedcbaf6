"""The numbers of series when a write fails: no measure may end in the history of another series."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event

from nightjar_ci.errors import StoreError
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, StoredRun, open_store
from tests.ci.nights import outcome, record
from tests.ci.store.test_store import night


def run(cell: str, loss: float) -> StoredRun:
    return StoredRun(outcome=outcome(f"{cell}-s0"), record=record(0, values=[loss], job=f"{cell}-s0"))


def fail_next_commit(store: Store) -> None:
    """Makes the next commit fail, as a disk does that has an error when the journal is written."""

    @event.listens_for(store._engine, "commit", once=True)
    def _(_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")


def test_a_series_whose_commit_failed_gets_a_number_of_its_own(tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)}))
    store.add_night(night(1))
    first, second = run("first", 1.0), run("second", 2.0)
    fail_next_commit(store)
    with pytest.raises((StoreError, sqlite3.OperationalError)):
        store.add_run(night(1).id, first.outcome, first.record)
    store.add_run(night(1).id, second.outcome, second.record)
    store.add_whole_night(night(1), [first, second])
    for cell, loss in (("first", 1.0), ("second", 2.0)):
        assert [point.value for point in store.history(cell, "loss")] == [loss]
    store.close()
