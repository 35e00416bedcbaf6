"""Earlier nights that the store lacks, from another machine or a lost store.

In: a night folder, the folder of this machine's nights, and the store. Out: the earlier nights of the same matrix in
either place are in the store, and a note says so. Importing only adds, so it is safe.
"""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import Night, read_night
from nightjar_ci.judges.finding import count
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_missing

MOST = 60  # the longest history to compare with


def import_earlier(store: Store, folder: Path, nights: Path | None = None) -> list[str]:
    """Imports the finished nights of the same matrix next to a night folder that are older and missing in the store.

    Args:
        nights: another folder of nights: this machine's.

    Returns: a line for the imported nights, and one for each that failed.
    """
    tonight, stored, notes = read_night(folder), set(store.night_ids()), list[str]()
    older: dict[str, tuple[Night, Path]] = {}
    searched = dict.fromkeys(parent.resolve() for parent in (folder.resolve().parent, nights) if parent is not None)
    for path in (path for parent in searched for path in sorted(parent.glob("*/night.json"))):
        if path.parent.name in stored:
            continue  # the folder's name is its id, so it need not be read
        try:
            night = read_night(path.parent)
        except InputError as error:
            notes.append(f"An earlier night is not compared with: {error.message}")
            continue
        if night.matrix == tonight.matrix and night.finished_at and night.started_at < tonight.started_at:
            older[night.id] = night, path.parent
    missing = sorted((pair for pair in older.values() if pair[0].id not in stored), key=lambda pair: pair[0].started_at)
    imported = 0
    for night, path in missing[-MOST:]:
        try:
            imported += len(import_missing(store, {night.id: path}))
        except InputError as error:
            notes.append(f"An earlier night is not compared with: {error.message}")
    if imported:
        notes.append(f"{count(imported, 'earlier night')} joined the store, which did not know them.")
    if len(missing) > MOST:
        command = f"nightjar-ci store --import {missing[0][1]}"
        notes.append(f"{len(missing) - MOST} nights that are older still are left out: `{command}` adds one.")
    return notes
