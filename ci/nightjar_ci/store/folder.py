"""What of a night folder goes into the store? Its night, and for each job its outcome, result and profile.

In: a night folder, written by this machine or another. Out: `StoredRun`s, or the night in the store, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import Night, job_folder, read_night, read_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile, find_machine, read_profile
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.store.store import StoredRun


class NightStore(Protocol):
    """What importing asks of the store."""

    def add_whole_night(self, night: Night, runs: Sequence[StoredRun]) -> None:
        """Remembers a night with all of its runs: all of it, or nothing."""


def import_night(store: NightStore, folder: Path) -> Night:
    """Remembers a night folder, all of it or nothing; what the store knows already stays as it is.

    Raises:
        InputError: `night.json` cannot be read.
        StoreError: the store cannot be written.
    """
    night = read_night(folder)
    store.add_whole_night(night, [read_stored(folder, outcome, record) for outcome, record in read_results(folder)])
    return night


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
