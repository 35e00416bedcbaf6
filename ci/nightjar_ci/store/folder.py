"""Import of night folders into the store: the night, and each job's outcome, result and profile.

In: a night folder from this machine or another. Out: `StoredRun`s, or the whole night in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import Night, job_folder, read_checked, read_night, read_result
from nightjar_ci.formats.night_results import NightResults, read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.profile import Profile, find_machine
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import read_verdicts
from nightjar_ci.store.measures import StoredRun
from nightjar_ci.store.store import Store


def import_night(store: Store, folder: Path) -> Night:
    """Adds a night folder to the store, all of it or nothing; runs that are stored already do not change."""
    results = read_night_results(folder)
    import_results(store, results)
    return results.night


def import_judged(store: Store, folder: Path) -> Night:
    """The same, with the verdicts in the folder: what later nights judge needs them."""
    night, path = import_night(store, folder), folder / "verdicts.json"
    if path.exists():
        store.add_verdicts(night.id, [verdict.document for verdict in read_verdicts(path).verdicts])
    return night


def import_results(store: Store, results: NightResults) -> None:
    """Adds the results of a night, all of them or none; runs that are stored already do not change."""
    runs = [
        make_stored(results.folder, outcome, record, results.profiles.get(outcome.job)) for outcome, record in results
    ]
    store.add_whole_night(results.night, runs)


def find_night_folders(folder: Path) -> dict[str, Path]:
    """The night folders in a folder, by night id; one that cannot be read is named on stderr."""
    folders = {}
    for path in sorted(folder.glob("*/night.json")):
        try:
            folders[read_night(path.parent).id] = path.parent
        except InputError as error:
            print(f"warning: left out: {error}", file=sys.stderr)
    return folders


def import_missing(store: Store, folders: Mapping[str, Path]) -> list[str]:
    """Adds the nights that the store lacks, with the verdicts in their folders.

    Returns: the ids of the added nights.
    """
    stored = set(store.night_ids())
    missing = {name: folder for name, folder in folders.items() if name not in stored}
    for folder in missing.values():
        import_judged(store, folder)
    return list(missing)


def read_stored(folder: Path, outcome: Outcome) -> StoredRun:
    own = job_folder(folder, outcome.job)
    checked, result = read_checked(outcome, own)
    if isinstance(result, Profile):
        return make_stored(folder, checked, read_result(own), result)
    return make_stored(folder, checked, result, None)


def make_stored(folder: Path, outcome: Outcome, record: RunRecord | None, profile: Profile | None) -> StoredRun:
    machine = None
    if profile is not None:
        machine = find_machine(job_folder(folder, outcome.job))
    return StoredRun(outcome=outcome, record=record, profile=profile, machine=machine)
