"""The recording of a matrix: one job of each cell runs again with the recorder, and is not timed.

In: jobs, and the packages to record. Out: a `Calls` document. The recorder slows Python down, so these runs are kept
apart from the nights, whose times are judged.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nightjar_ci.calls.recording import Recording, find_own, read_recording
from nightjar_ci.counters.on_path import escape, with_recorder, write_recorder
from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import InputError
from nightjar_ci.formats.calls import Calls, CellCalls, NameCalls
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.night.progress import NightProgress
from nightjar_ci.night.run_job import prepare, run_task

PACKAGES = ("jax", "optax", "orbax", "flax", "grain")
USED = "used.txt"
MORE_TIME = 3  # times a job's limit: the recorder took 1.4 times the processor time of tests, and twice a night's
_ON_PATH = "on-path"
_RECORDER = Path(__file__).with_name("recorder.py")


def choose_jobs(jobs: Sequence[Job]) -> list[Job]:
    """The first job of each cell that runs on this machine; a capture runs a program that another cell trains."""
    cells: dict[str, Job] = {}
    for job in jobs:
        if job.executor == "local" and job.kind != "profile":
            cells.setdefault(job.cell, job)
    if not cells:
        raise InputError(
            "no job of this matrix can be recorded: expected one of kind 'train' or 'test' with the executor 'local'.",
            "--executor local runs them here",
        )
    return list(cells.values())


def record_matrix(
    name: str,
    jobs: Sequence[Job],
    folder: Path,
    packages: Sequence[str],
    used: Mapping[str, int],
    environments: Environments,
) -> Calls:
    """Runs jobs with the recorder.

    Args:
        folder: of the jobs' files; each job has its own folder.
        packages: top-level packages whose functions are recorded.
        used: public names in use, with the number of files.
    """
    ended: dict[str, tuple[Outcome, Recording]] = {}
    with NightProgress(len(jobs)) as progress:
        for job in jobs:
            progress.start(job.id, ", recorded")
            ended[job.cell] = record_job(job, folder / job.cell, packages, used, environments, progress)
            progress.end(ended[job.cell][0])
    return join(name, ended, packages, used)


def record_job(
    job: Job,
    folder: Path,
    packages: Sequence[str],
    used: Collection[str],
    environments: Environments,
    progress: NightProgress,
) -> tuple[Outcome, Recording]:
    """Runs one job with the recorder in each of its Python processes."""
    recorded = folder.absolute() / "calls"
    task = prepare(recorded_job(job, recorded, packages, os.environ), folder, environments, progress.on_line)
    if isinstance(task, Outcome):
        return task, Recording()
    write_recorder(recorded / _ON_PATH, _RECORDER)
    (recorded / USED).write_text("\n".join(used), encoding="utf-8")
    outcome = run_task(task)
    try:
        return outcome, read_recording(recorded)
    except InputError as error:  # of this job alone: the other cells are recorded all the same
        return outcome.model_copy(update={"state": "invalid", "message": str(error)}), Recording()


def recorded_job(job: Job, recorded: Path, packages: Sequence[str], environ: Mapping[str, str]) -> Job:
    """A job whose Python processes record their calls in a folder, in `MORE_TIME`; nothing else is measured."""
    folder = escape(str(recorded))
    variables = {
        "NIGHTJAR_CALLS": folder,
        "NIGHTJAR_CALLS_PACKAGES": ",".join(packages),
        "NIGHTJAR_CALLS_USED": f"{folder}/{USED}",
    }
    slower = replace(job, measure=(), timeout_s=MORE_TIME * job.timeout_s)
    return with_recorder(slower, f"{folder}/{_ON_PATH}", environ, variables)


def join(
    name: str,
    ended: Mapping[str, tuple[Outcome, Recording]],
    packages: Collection[str],
    used: Mapping[str, int],
) -> Calls:
    """The document of a matrix from the recordings of its cells."""
    functions = sorted(set[str]().union(*(recording.functions for _, recording in ended.values())))
    places = {function: place for place, function in enumerate(functions)}
    cells, users = {}, dict[str, dict[str, set[str]]]()
    for cell, (outcome, recording) in ended.items():
        executed = recording.executed()
        cells[cell] = CellCalls(
            job=outcome.job,
            state=outcome.state,
            duration_s=outcome.duration_s,
            functions=tuple(sorted(places[function] for function in recording.functions)),
        )
        for public in {*executed, *used}:
            if packages_using := recording.find_users(public, executed):
                users.setdefault(public, {})[cell] = packages_using
    return Calls(
        matrix=name,
        recorded_at=now(),
        packages=tuple(packages),
        functions=tuple(functions),
        cells=cells,
        names={
            public: NameCalls(
                cells=tuple(by_cell),
                own=tuple(cell for cell, using in by_cell.items() if find_own(using, packages)),
            )
            for public, by_cell in sorted(users.items())
        },
        used=dict(used),
    )
