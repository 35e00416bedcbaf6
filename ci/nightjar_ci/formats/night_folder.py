"""The night folder: its layout, `night.json` and the results of its jobs (docs/reference/night-folder.md).

In: the path of a night folder. Out: the `Night`, and the outcome and result of each job. A job that exited with code 0
without its own readable result is `invalid`.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, read_document, write_json
from nightjar_ci.formats.outcome import Outcome, SafeId, State
from nightjar_ci.formats.profile import Profile, read_profile
from nightjar_ci.formats.run_record import Git, RunRecord, read_run

SCHEMA = "nightjar.night/1"


class Options(StrictModel):
    """The options of `run` and `nightly` that choose and move the jobs of a night."""

    jobs: str | None = None
    seeds: str | None = None
    executor: str | None = None
    environment: str | None = None
    requirements: str | None = None
    one_process: bool = False


class Night(StrictModel):
    """One run of a matrix: `night.json`.

    Attributes:
        options: of the call that began it, for the one that resumes it.
        left_out: cells of the matrix that were not selected (`--jobs`).
    """

    schema_: Annotated[Literal["nightjar.night/1"], Field(alias="schema")] = "nightjar.night/1"
    id: SafeId
    matrix: str
    started_at: str
    finished_at: str | None
    git: Git | None
    options: Options | None = None
    planned: tuple[SafeId, ...] = ()
    left_out: tuple[SafeId, ...] = ()
    jobs: tuple[Outcome, ...]

    @property
    def not_run(self) -> tuple[str, ...]:
        ended = {outcome.job for outcome in self.jobs}
        return tuple(job for job in self.planned if job not in ended)

    def outcome_of(self, job_id: str) -> Outcome | None:
        return next((outcome for outcome in self.jobs if outcome.job == job_id), None)

    def with_outcome(self, outcome: Outcome) -> Night:
        others = tuple(earlier for earlier in self.jobs if earlier.job != outcome.job)
        return self.model_copy(update={"jobs": (*others, outcome)})


def now() -> str:
    """The time now: ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_night_id() -> str:
    """A night id that sorts by time: `2026-11-21T0300-1a2b` (UTC)."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H%M}-{secrets.token_hex(2)}"


def is_night_id(name: str) -> bool:
    return re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}-[0-9a-f]{4}", name) is not None


def job_folder(night_folder: Path, job_id: str) -> Path:
    return night_folder / "jobs" / job_id


def programs_folder(night_folder: Path) -> Path:
    """The folder of a night's compiled programs while it runs, if its matrix has one."""
    return night_folder / "programs"


def find_programs(folder: Path) -> Path | None:
    """The compiled programs that a job shares with others of its night; None if it shares none."""
    programs = programs_folder(folder.parent.parent)
    return programs if programs.is_dir() and not programs.is_symlink() else None  # a job may write to it


def read_night(folder: Path) -> Night:
    path = folder / "night.json"
    if not path.exists():
        raise InputError(f"{path}: no such file.", "name the folder of a night, usually in .nightjar/nights")
    return read_document(path, Night, SCHEMA)


def write_night(folder: Path, night: Night) -> None:
    write_json(folder / "night.json", night)


def read_checked(outcome: Outcome, folder: Path) -> tuple[Outcome, RunRecord | Profile | None]:
    """The outcome of a job, and its result or profile; None if none is readable.

    The outcome is `invalid` if the job completed and its result is unreadable or not its own.
    A failed job may have a result: a training that diverged records the step.
    """
    if not outcome.completed:
        return outcome, read_result(folder)
    record = None
    try:
        if outcome.kind == "profile":
            return outcome, read_profile(folder / "capture")
        record = read_run(folder / "result.json", left_in=folder)
        if outcome.replicate is not None and record.seed != outcome.replicate:
            raise InputError(
                f"{folder / 'result.json'}: seed is {record.seed}, expected {outcome.replicate}.",
                "pass {seed} to the command: jobs with the same seed are not replicates",
            )
    except InputError as error:
        hint = error.hint or "`nightjar-ci show run` prints the format of what a job writes to {out}"
        message = f"{outcome.job}: exit code 0, but its result cannot be read: {error.message} Hint: {hint}"
        return _judge(outcome, "invalid", message), record
    if record.status == "diverged":
        message = f"{outcome.job}: exit code 0, but its training diverged. Hint: the loss is in its result.json"
        return _judge(outcome, "failed", message), record
    return outcome, record


def _judge(outcome: Outcome, state: State, message: str) -> Outcome:
    """The outcome of a completed job that is none after all; it may say already that files were removed."""
    said = "\n".join(filter(None, (message, outcome.message)))
    return outcome.model_copy(update={"state": state, "message": said})


def read_result(folder: Path) -> RunRecord | None:
    """The result in a job's folder, or None if none is readable."""
    try:
        return read_run(folder / "result.json", left_in=folder)
    except InputError:
        return None
