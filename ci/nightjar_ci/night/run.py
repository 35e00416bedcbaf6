"""The run of a night: each outcome is recorded as soon as its job ends.

In: a matrix (or some of its jobs) and a folder. Out: a night folder, and a `Night` with the outcome of each job. A
failed job stops no other, and removes nothing that was recorded.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from nightjar_ci.environments.git_tree import read_git
from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import InputError, NightjarError, StoreError
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import (
    Night,
    Options,
    is_night_id,
    new_night_id,
    now,
    programs_folder,
    read_night,
    write_night,
)
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.judges.finding import count
from nightjar_ci.night.lock import hold_folder
from nightjar_ci.night.matrix import Matrix, expand
from nightjar_ci.night.progress import Countdown, NightProgress, describe_remaining
from nightjar_ci.night.run_job import DISK_HINT
from nightjar_ci.night.scheduler import run_jobs
from nightjar_ci.settings import keep_out_of_git, read_settings
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_night, read_stored


def run_night(
    matrix: Matrix,
    folder: Path,
    *,
    jobs: Sequence[Job] | None = None,
    store: Store | None = None,
    environments: Environments | None = None,
    resume: bool = False,
    failed_again: bool = False,
    workers: int = 1,
    options: Options | None = None,
) -> Night:
    """Runs jobs, and records each outcome in `night.json` and in the store.

    Args:
        folder: the night folder; its name becomes the night's id if it has the form of one.
        resume: continue the unfinished night of this folder; its completed jobs do not run again.
        failed_again: with `resume`, continue a finished night too: its jobs that did not complete run again.
        workers: number of jobs to run on this machine at the same time; use 1 for timings.
        options: that chose the jobs, for a later call with `resume`.
    """
    if not resume:
        _make_folder(folder)
    with hold_folder(folder):
        if jobs is None:
            jobs = expand(matrix)
        todo = list(jobs)
        night = _resumed(folder, matrix, finished_too=failed_again) if resume else _started(folder, matrix)
        planned = dict.fromkeys((*night.planned, *(job.id for job in todo)))
        left_out = _left_out(matrix, todo, planned)
        night = night.model_copy(
            update={"planned": tuple(planned), "left_out": left_out, "options": options or night.options}
        )
        with _keep_programs(folder) if matrix.defaults.share_programs else contextlib.nullcontext():
            return _run_left(night, todo, folder, store, environments or Environments(), workers)


@contextlib.contextmanager
def _keep_programs(folder: Path) -> Iterator[None]:
    """Lets jobs share compiled programs until the night ends; programs compiled on another machine are not reused."""
    programs = programs_folder(folder)
    shutil.rmtree(programs, ignore_errors=True)
    with contextlib.suppress(OSError):  # each job compiles for itself
        programs.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(programs, ignore_errors=True)


def _run_left(
    night: Night, jobs: Sequence[Job], folder: Path, store: Store | None, environments: Environments, workers: int
) -> Night:
    """Runs the jobs that have not completed, and records each outcome."""
    todo, done = _left(night, jobs), sum(outcome.completed for outcome in night.jobs)
    usual_s = {job.id: job.usual_s / workers for job in todo if job.usual_s is not None}
    countdown = Countdown(usual_s) if len(usual_s) == len(todo) else None
    with NightProgress(len(todo), countdown=countdown) as progress:
        parts = [f"night {night.id}: {count(len(todo), 'job')} of {night.matrix}"]
        if done:
            parts.append(f"{done} done")
        if countdown is not None:
            parts.append(describe_remaining(countdown.remaining_s))
        progress.say(", ".join(parts))
        recorder = _Recorder(folder, store, progress.say)
        recorder.record(night)
        ends = run_jobs(
            todo,
            folder,
            environments,
            workers=workers,
            on_start=progress.start,
            on_line=progress.on_line_of,
            on_step=progress.on_step_of,
        )
        with contextlib.closing(ends):
            for outcome in ends:
                night = night.with_outcome(outcome)
                recorder.record(night, outcome)
                progress.end(outcome)
        if not night.not_run:
            night = night.model_copy(update={"finished_at": now()})
        recorder.finish(night)
    return night


def left_to_run(matrix: Matrix, folder: Path, jobs: Sequence[Job]) -> list[Job]:
    """The jobs that `run_night` would run to resume the night of a folder, finished or not."""
    return _left(_resumed(folder, matrix, finished_too=True), jobs)


def _left(night: Night, jobs: Sequence[Job]) -> list[Job]:
    done = {outcome.job for outcome in night.jobs if outcome.completed}
    return [job for job in jobs if job.id not in done]


def _left_out(matrix: Matrix, jobs: Sequence[Job], planned: Collection[str]) -> tuple[str, ...]:
    matrix_jobs = expand(matrix)
    included = {job.cell for job in jobs} | {job.cell for job in matrix_jobs if job.id in planned}
    return tuple(dict.fromkeys(job.cell for job in matrix_jobs if job.cell not in included))


class _Recorder:
    """Records a night while it runs; a write that fails is a warning, and is tried again at the end."""

    def __init__(self, folder: Path, store: Store | None, say: Callable[[str], None]) -> None:
        self._folder, self._store, self._say = folder, store, say

    def record(self, night: Night, outcome: Outcome | None = None) -> None:
        """Writes `night.json`, and adds the night and an outcome to the store; prints a warning if it cannot."""
        try:
            write_night(self._folder, night)
            if self._store is not None:
                self._store.add_night(night)
                if outcome is not None:
                    self._add_run(self._store, night, outcome)
        except (OSError, StoreError) as error:
            self._say(f"warning: {self._describe(error)}")

    def finish(self, night: Night) -> None:
        """Records the finished night with all of its runs; runs that are recorded already do not change."""
        try:
            write_night(self._folder, night)
            if self._store is not None:
                import_night(self._store, self._folder)
        except OSError as error:
            raise NightjarError(self._describe(error), DISK_HINT) from error

    def _add_run(self, store: Store, night: Night, outcome: Outcome) -> None:
        stored = read_stored(self._folder, outcome)
        store.add_run(night.id, outcome, stored.record, stored.profile, stored.machine)

    def _describe(self, error: OSError | StoreError) -> str:
        if isinstance(error, StoreError):
            return str(error)
        return f"{self._folder / 'night.json'} cannot be written: {error}."


def _started(folder: Path, matrix: Matrix) -> Night:
    if (folder / "night.json").exists():
        raise InputError(f"{folder} already holds a night.", "--resume continues it; --out names another folder")
    night = Night(
        id=folder.name if is_night_id(folder.name) else new_night_id(),
        matrix=matrix.name,
        started_at=now(),
        finished_at=None,
        git=read_git(Path.cwd()),
        planned=(),
        jobs=(),
    )
    try:
        write_night(folder, night)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return night


def _make_folder(folder: Path) -> None:
    settings = read_settings()
    try:
        if folder.resolve().is_relative_to(settings.state_dir.resolve()):
            keep_out_of_git(settings)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> NightjarError:
    return NightjarError(f"{folder} cannot be written: {error}.", "check free space and that you own the folder")


def _resumed(folder: Path, matrix: Matrix, *, finished_too: bool) -> Night:
    night = read_night(folder)
    if night.matrix != matrix.name:
        raise InputError(f"{folder} is a night of the matrix {night.matrix!r}, expected {matrix.name!r}.")
    if night.finished_at is not None and not finished_too:
        raise InputError(f"{folder} finished at {night.finished_at}.", "start a new night, without --resume")
    known = {*(job.id for job in expand(matrix)), *(outcome.job for outcome in night.jobs)}
    planned = tuple(job for job in night.planned if job in known)  # a job that the matrix lost would never end
    return night.model_copy(update={"finished_at": None, "planned": planned})


def resume_options(folder: Path, given: Options) -> Options:
    """The options of the call that began a night: others would mix two nights."""
    first = read_night(folder).options
    if first is None:  # of an earlier version, or no call of `run` or `nightly` began it
        return given
    if given not in (first, Options()):
        words = ", ".join(f"{name} = {value!r}" for name, value in first if value) or "none"
        raise InputError(f"{folder} was begun with other options: {words}.", "--resume keeps them: leave yours out")
    return first


def find_unfinished(nights: Path, matrix: Matrix) -> Path:
    """The latest night of a matrix that was interrupted."""
    for folder in sorted((path.parent for path in nights.glob("*/night.json")), reverse=True):
        with contextlib.suppress(InputError):  # another night's damage is not this one's
            night = read_night(folder)
            if night.matrix == matrix.name and night.finished_at is None:
                return folder
    raise InputError(f"{nights} holds no unfinished night of the matrix {matrix.name!r}.", "run it without --resume")
