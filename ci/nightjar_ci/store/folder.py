"""Import of a night folder into the store: its night, and each job's outcome, result and profile.

In: a night folder, written by this machine or another. Out: `StoredRun`s, or the whole night in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import Night, job_folder, read_night
from nightjar_ci.formats.night_results import NightResults, read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile, find_machine, read_profile
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import read_verdicts
from nightjar_ci.store.measures import StoredRun


class NightStore(Protocol):
    """What importing asks of the store."""

    def add_whole_night(self, night: Night, runs: Sequence[StoredRun]) -> None:
        """Remembers a night with all of its runs: all of it, or nothing."""


class KnownNights(NightStore, Protocol):
    """What importing only what is missing asks of the store besides."""

    def night_ids(self) -> Sequence[str]:
        """The ids of all nights."""

    def add_verdicts(self, night_id: str, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Remembers the verdicts of a night."""


def import_night(store: NightStore, folder: Path) -> Night:
    """Remembers a night folder, all of it or nothing; what the store knows already stays as it is.

    Raises:
        InputError: `night.json` cannot be read.
        StoreError: the store cannot be written.
    """
    results = read_night_results(folder)
    import_results(store, results)
    return results.night


def import_results(store: NightStore, results: NightResults) -> None:
    """Remembers what a night left, all of it or nothing; what the store knows already stays as it is.

    Raises:
        StoreError: the store cannot be written.
    """
    runs = [read_stored(results.folder, outcome, record) for outcome, record in results]
    store.add_whole_night(results.night, runs)


def find_night_folders(folder: Path) -> dict[str, Path]:
    """The night folders in a folder, by the id of the night.

    Raises:
        InputError: a `night.json` cannot be read.
    """
    return {read_night(path.parent).id: path.parent for path in sorted(folder.glob("*/night.json"))}


def import_missing(store: KnownNights, folders: Mapping[str, Path]) -> list[str]:
    """Remembers the nights that the store lacks, with their verdicts, as another machine left them.

    Args:
        store: where to.
        folders: id of a night to its folder.

    Returns: the ids of those that were added.

    Raises:
        InputError: a night or its verdicts cannot be read.
        StoreError: the store cannot be read or written.
    """
    known = set(store.night_ids())
    missing = {name: folder for name, folder in folders.items() if name not in known}
    for name, folder in missing.items():
        import_night(store, folder)
        judged = folder / "verdicts.json"
        if judged.exists():
            verdicts = read_verdicts(judged).verdicts
            store.add_verdicts(name, [one.model_dump(mode="json") for one in verdicts])
    return list(missing)


def read_stored(folder: Path, outcome: Outcome, record: RunRecord | None) -> StoredRun:
    """What the store is given of a job of a night folder."""
    profile = _profile_of(folder, outcome)
    machine = None if profile is None else find_machine(job_folder(folder, outcome.job))
    return StoredRun(outcome=outcome, record=record, profile=profile, machine=machine)


def _profile_of(folder: Path, outcome: Outcome) -> Profile | None:
    if outcome.kind != "profile" or not outcome.completed:
        return None
    try:
        return read_profile(job_folder(folder, outcome.job) / "capture")
    except InputError:
        return None
