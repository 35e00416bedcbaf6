"""How does a night run? Each job in its environment by its executor, its result read, everything kept at once.

In: a matrix (or some of its jobs) and a folder. Out: a night folder, and a `Night` that says what became of each job.
Whatever befalls one job, the others go on, and what is already stored stays.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from nightjar_ci.adapters.job import adapt_job
from nightjar_ci.documents import write_json
from nightjar_ci.environments import Environments
from nightjar_ci.errors import EnvironmentFailedError, InputError, NightjarError, StoreError
from nightjar_ci.executors import EXECUTORS, OnLine
from nightjar_ci.executors.ending import not_started
from nightjar_ci.job import Job
from nightjar_ci.matrix import Matrix, expand
from nightjar_ci.night import (
    Night,
    check_result,
    is_night_id,
    job_folder,
    new_night_id,
    now,
    read_night,
    read_result,
    write_night,
)
from nightjar_ci.outcome import Outcome
from nightjar_ci.progress import NightProgress
from nightjar_ci.record import Git
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_night, read_stored

_DISK_HINT = "is the disk full? Make room; `--resume` continues the night"


def run_job(job: Job, folder: Path, environments: Environments | None = None, on_line: OnLine | None = None) -> Outcome:
    """Runs one job and reads what it leaves; whatever goes wrong with the job is in the outcome.

    Args:
        job: what to run.
        folder: the job's `{out}`; what an earlier run left there is removed.
        environments: environments prepared so far; fresh where None.
        on_line: called with the last line that the job has written.

    Returns:
        The outcome, also written to `outcome.json`.
    """
    started_at = now()
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        environment = (Environments() if environments is None else environments).get(job.environment, on_line)
        outcome = EXECUTORS[job.executor].run(job, environment, folder, on_line)
        if job.adapter is not None and outcome.completed:
            adapt_job(outcome, job.adapter, folder, find_git())
    except InputError as error:
        message = f"{job.id}: exit code 0, but its adapter cannot read what it left: {error}"
        outcome = outcome.model_copy(update={"state": "invalid", "message": message})
    except EnvironmentFailedError as error:
        outcome = not_started(job, error.message, error.hint, started_at)
    except OSError as error:
        outcome = not_started(job, f"{folder} cannot be written: {error}.", _DISK_HINT, started_at)
    outcome = check_result(outcome, folder)
    try:
        write_json(folder / "outcome.json", outcome)
    except OSError as error:
        lost = f"{job.id}: outcome.json cannot be written: {error}. Hint: {_DISK_HINT}"
        return outcome.model_copy(update={"message": f"{outcome.message}\n{lost}" if outcome.message else lost})
    return outcome


def run_night(
    matrix: Matrix,
    folder: Path,
    *,
    jobs: Sequence[Job] | None = None,
    store: Store | None = None,
    environments: Environments | None = None,
    resume: bool = False,
) -> Night:
    """Runs jobs one after the other, and keeps what is known after each: in `night.json`, and in the store.

    Args:
        matrix: where the jobs are from.
        folder: the night folder; its name becomes the night's id where it is one.
        jobs: the jobs to run; all of the matrix where None.
        store: remembers the night, its runs and their measures.
        environments: prepared so far; fresh where None.
        resume: continue the unfinished night of this folder, its completed jobs left as they are.

    Raises:
        InputError: the folder holds a night already, or none that can be resumed.
        NightjarError: at the end, where the night or the store could not be written.
        KeyboardInterrupt: after the running job has been ended; the night stays unfinished.
    """
    todo = list(expand(matrix) if jobs is None else jobs)
    night = _resumed(folder, matrix) if resume else _started(folder, matrix)
    planned = dict.fromkeys((*night.planned, *(job.id for job in todo)))
    night = night.model_copy(update={"planned": tuple(planned)})
    done = {outcome.job for outcome in night.jobs if outcome.completed}
    todo = [job for job in todo if job.id not in done]
    environments = Environments() if environments is None else environments
    with NightProgress(len(todo)) as progress:
        progress.say(f"night {night.id}: {len(todo)} jobs of {matrix.name}" + (f", {len(done)} done" * bool(done)))
        keeper = _Keeper(folder, store, progress.say)
        keeper.keep(night)
        for job in todo:
            progress.start(job.id)
            outcome = run_job(job, job_folder(folder, job.id), environments, progress.on_line)
            night = night.with_outcome(outcome)
            keeper.keep(night, outcome)
            progress.end(outcome)
        if all(night.outcome_of(job_id) for job_id in night.planned):
            night = night.model_copy(update={"finished_at": now()})
        keeper.finish(night)
    return night


class _Keeper:
    """Keeps a night as it goes: what cannot be kept now is said, and tried again at the end."""

    def __init__(self, folder: Path, store: Store | None, say: Callable[[str], None]) -> None:
        self._folder, self._store, self._say = folder, store, say

    def keep(self, night: Night, outcome: Outcome | None = None) -> bool:
        """Writes `night.json`, and remembers the night or one more of its runs; says what could not be kept."""
        try:
            write_night(self._folder, night)
            if self._store is not None:
                self._store.add_night(night)
                if outcome is not None:
                    self._remember(self._store, night, outcome)
        except (OSError, StoreError) as error:
            self._say(f"warning: {self._describe(error)}")
            return False
        return True

    def finish(self, night: Night) -> None:
        """Keeps the finished night with all of its runs: those that are kept already stay the same."""
        try:
            write_night(self._folder, night)
            if self._store is not None:
                import_night(self._store, self._folder)
        except OSError as error:
            raise NightjarError(self._describe(error), _DISK_HINT) from error

    def _remember(self, store: Store, night: Night, outcome: Outcome) -> None:
        stored = read_stored(self._folder, outcome, read_result(job_folder(self._folder, outcome.job)))
        store.add_run(night.id, outcome, stored.record, stored.profile, stored.machine)

    def _describe(self, error: OSError | StoreError) -> str:
        if isinstance(error, StoreError):
            return str(error)
        return f"{self._folder / 'night.json'} cannot be written: {error}."


def _started(folder: Path, matrix: Matrix) -> Night:
    if (folder / "night.json").exists():
        raise InputError(f"{folder} holds a night already.", "--resume continues it; --out names another folder")
    night = Night(
        id=folder.name if is_night_id(folder.name) else new_night_id(),
        matrix=matrix.name,
        started_at=now(),
        finished_at=None,
        git=find_git(),
        planned=(),
        jobs=(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_night(folder, night)
    except OSError as error:
        raise NightjarError(
            f"{folder} cannot be written: {error}.", "is the disk full, or the folder another's?"
        ) from None
    return night


def _resumed(folder: Path, matrix: Matrix) -> Night:
    night = read_night(folder)
    if night.matrix != matrix.name:
        raise InputError(f"{folder} is a night of the matrix {night.matrix!r}, expected {matrix.name!r}.")
    if night.finished_at is not None:
        raise InputError(f"{folder} finished at {night.finished_at}.", "start a new night, without --resume")
    return night


def find_unfinished(nights: Path, matrix: Matrix) -> Path:
    """The latest night of a matrix that was interrupted.

    Raises:
        InputError: there is none.
    """
    for folder in sorted((path.parent for path in nights.glob("*/night.json")), reverse=True):
        with contextlib.suppress(InputError):  # another night's damage is not this one's
            night = read_night(folder)
            if night.matrix == matrix.name and night.finished_at is None:
                return folder
    raise InputError(f"{nights} holds no unfinished night of the matrix {matrix.name!r}.", "run it without --resume")


def find_git() -> Git | None:
    """The commit of the working directory, or None where there is none."""
    try:
        sha, status = (
            subprocess.run(["git", *asked], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
            for asked in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Git(sha=sha, dirty=bool(status))
