"""A job between its submission to Slurm and its end.

In: a task. Out: the executor's state of it; `slurm.json` in the job's folder is for resumed nights.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from nightjar_ci.executors.base import Task
from nightjar_ci.executors.process import STDERR, LogTail
from nightjar_ci.executors.slurm.cluster import JobState
from nightjar_ci.executors.slurm.script import OUT, BatchSpec, Cell, is_path
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.night_folder import now
from nightjar_ci.images.publish.verify import find_signer, pin_signed
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.files import append_untrusted, read_untrusted
from nightjar_ci.untrusted.inheritance import select

STATE_FILE = "slurm.json"


@dataclass(slots=True)
class SlurmJob:
    """A job between its submission and its end."""

    task: Task
    spec: BatchSpec
    cell: Cell
    started_at: str
    slurm_id: str = ""
    submissions: int = 0
    excluded: set[str] = field(default_factory=set)
    state: JobState | None = None
    unseen_since: float | None = None  # since when Slurm does not know it
    ended_since: float | None = None  # since when it has ended without its exit file
    timed_out: bool = False
    log_tail: LogTail | None = None

    @property
    def may_restart(self) -> bool:
        return self.submissions <= self.spec.restarts and not self.timed_out

    def pin_image(self) -> None:
        """If only signed images may be pulled: checks the signature, and names the image by its digest.

        A squashfs file on the nodes is not pulled.
        """
        image, signer = self.spec.image, find_signer()
        if image is None or signer is None or is_path(image):
            return
        pinned = pin_signed(image, signer)
        self.spec = replace(self.spec, image=pinned)
        self.cell = replace(self.cell, variables={**self.cell.variables, "NIGHTJAR_IMAGE": pinned})


def prepare(task: Task) -> SlurmJob:
    """A job to submit, or one that an interrupted night has submitted from the same folder."""
    settings = read_settings()
    folder, image, work = task.folder.absolute(), task.environment.image, task.environment.folder
    command, variables = task.job.rendered(folder if image is None else PurePosixPath(OUT))
    if image is not None:
        variables["NIGHTJAR_IMAGE"] = image
    elif work is None:
        work = Path.cwd()
    log_tail = None
    if task.on_line is not None:
        log_tail = LogTail(task.folder / STDERR, task.on_line)
    return SlurmJob(
        task,
        spec=BatchSpec(
            resources=task.job.resources,
            timeout_s=task.job.timeout_s,
            image=image,
            work=None if work is None else str(work.absolute()),
            options=settings.slurm_options,
            passed=tuple(sorted(select(os.environ, task.job.inherited))),
        ),
        cell=Cell(folder=str(folder), command=command, variables=variables),
        started_at=now(),
        slurm_id=_read_id(task.folder),
        log_tail=log_tail,
    )


def save_state(job: SlurmJob) -> None:
    text = json.dumps({"id": job.slurm_id})
    # atomic: after a kill, a half-written file would start the job twice
    write_text(job.task.folder / STATE_FILE, f"{text}\n")


def _read_id(folder: Path) -> str:
    """The Slurm id of the job in a folder; empty if none was submitted."""
    try:
        slurm_id = str(json.loads(read_untrusted(folder, STATE_FILE))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not re.fullmatch(r"\d+(_\d+)?", slurm_id):  # the job can write to this file
        return ""
    return slurm_id


def append_log_line(job: SlurmJob, text: str) -> None:
    """Appends a line to a job's log, unless the job has replaced the log with something else."""
    with contextlib.suppress(OSError):
        append_untrusted(job.task.folder, STDERR, f"{text}\n")
