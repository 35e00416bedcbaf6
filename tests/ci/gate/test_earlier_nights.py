"""Earlier nights that the store lacks: which are imported, in which order, and what is said of the others."""

from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.gate import earlier_nights
from nightjar_ci.gate.earlier_nights import MOST, import_earlier
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_night
from tests.ci.nights import make_night, outcome, record


def leave(nights: Path, day: int, **changes: Any) -> Path:
    name = f"2026-11-{day:02d}T0300-1a2b"
    folder = make_night(nights / name, [(outcome(), record())], name)
    write_night(folder, read_night(folder).model_copy(update=changes))
    return folder


def test_older_nights_beside_tonight_join_the_store_oldest_first(tmp_path: Path, store: Store) -> None:
    for day in (9, 2, 5):
        leave(tmp_path, day)
    import_night(store, tmp_path / "2026-11-05T0300-1a2b")
    notes = import_earlier(store, leave(tmp_path, 7))
    assert store.night_ids() == ["2026-11-02T0300-1a2b", "2026-11-05T0300-1a2b"]
    assert notes == ["1 earlier night joined the store, which did not know them."]


def test_nights_of_this_machine_count_too_and_once(tmp_path: Path, store: Store) -> None:
    leave(tmp_path / "a", 2)
    leave(tmp_path / "b", 2)
    leave(tmp_path / "b", 3)
    notes = import_earlier(store, leave(tmp_path / "a", 7), tmp_path / "b")
    assert store.night_ids() == ["2026-11-02T0300-1a2b", "2026-11-03T0300-1a2b"]
    assert notes == ["2 earlier nights joined the store, which did not know them."]


def test_other_matrices_and_unfinished_nights_are_no_history(tmp_path: Path, store: Store) -> None:
    leave(tmp_path, 2, matrix="another")
    leave(tmp_path, 3, finished_at=None)
    leave(tmp_path, 7, started_at="2026-11-07T03:00:00+00:00")
    assert import_earlier(store, leave(tmp_path, 7)) == []
    assert store.night_ids() == []


def test_a_night_that_cannot_be_read_is_named_and_the_others_are_imported(tmp_path: Path, store: Store) -> None:
    broken = leave(tmp_path, 2)
    (broken / "night.json").write_text("{")
    bad_verdicts = leave(tmp_path, 3)
    (bad_verdicts / "verdicts.json").write_text("{")
    leave(tmp_path, 4)
    notes = import_earlier(store, leave(tmp_path, 7))
    assert "2026-11-04T0300-1a2b" in store.night_ids()
    assert [note.startswith("An earlier night is not compared with: ") for note in notes] == [True, True, False]
    assert str(broken) in notes[0]
    assert notes[2].startswith("1 earlier night joined")


def test_the_newest_are_taken_and_the_rest_named_with_the_command_that_adds_one(
    tmp_path: Path, monkeypatch: Any, store: Store
) -> None:
    assert MOST == 60
    monkeypatch.setattr(earlier_nights, "MOST", 2)
    folders = [leave(tmp_path, day) for day in (2, 3, 4, 5)]
    *_, note = import_earlier(store, leave(tmp_path, 7))
    assert store.night_ids() == ["2026-11-04T0300-1a2b", "2026-11-05T0300-1a2b"]
    assert note == f"2 nights that are older still are left out: `nightjar-ci store --import {folders[0]}` adds one."


def test_as_many_nights_as_are_imported_at_once_leave_none_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(earlier_nights, "MOST", 2)
    for day in (2, 3):
        leave(tmp_path, day)
    notes = import_earlier(store, leave(tmp_path, 7))
    assert notes == ["2 earlier nights joined the store, which did not know them."]
