"""What is known of a job between its submission to Slurm and its end?

In: a task. Out: what the executor keeps of it, a part of which is in `slurm.json` of its folder, for a resumed night.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nightjar_ci.executors.base import Task
from nightjar_ci.executors.process import STDERR, Follower
from nightjar_ci.executors.slurm.cluster import JobState
from nightjar_ci.executors.slurm.script import OUT, Cell, Place
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.files import append_untrusted, read_untrusted
from nightjar_ci.untrusted.inheritance import select

STATE_FILE = "slurm.json"


@dataclass(slots=True)
class Watched:
    """A job between its submission and its end."""

    task: Task
    place: Place
    cell: Cell
    started_at: str
    slurm_id: str = ""
    submissions: int = 0
    excluded: set[str] = field(default_factory=set)
    state: JobState | None = None
    unseen_since: float | None = None  # Slurm has not known it since then
    ended_since: float | None = None  # Slurm has said so, and its last file has not come
    timed_out: bool = False
    moves: list[str] = field(default_factory=list)  # why it was taken away from its nodes, each time
    leaving: bool = False  # cancelled, to be submitted again
    stays: bool = False  # on a drained node: it has started again too often
    waits_for: str = ""
    follower: Follower | None = None

    @property
    def job(self) -> Job:
        """What runs."""
        return self.task.job

    @property
    def movable(self) -> bool:
        """Whether it may be taken away from its nodes, as far as is known here."""
        runs = self.state is not None and self.state.state == "RUNNING"
        return runs and not (self.timed_out or self.leaving or self.stays)

    @property
    def may_start_again(self) -> bool:
        """Whether it is submitted again, should it be lost."""
        return self.submissions <= self.place.restarts and not self.timed_out


def prepare(task: Task) -> Watched:
    """A job that is to be submitted, or one that is under way in its folder."""
    settings = read_settings()
    folder, image, work = task.folder.absolute(), task.environment.image, task.environment.folder
    command, variables = task.job.rendered(folder if image is None else PurePosixPath(OUT))
    if image is not None:
        variables["NIGHTJAR_IMAGE"] = image
    slurm_id, moves, leaving = _recall(task.folder)
    return Watched(
        task,
        place=Place(
            resources=task.job.resources,
            timeout_s=task.job.timeout_s,
            image=image,
            work=None if work is None else str(work.absolute()),
            options=settings.slurm_options,
            passed=tuple(sorted(select(os.environ, task.job.inherited))),
        ),
        cell=Cell(folder=str(folder), command=command, variables=variables),
        started_at=now(),
        slurm_id=slurm_id,
        moves=moves,
        leaving=leaving,
        follower=Follower(task.folder / STDERR, task.on_line) if task.on_line is not None else None,
    )


def remember(one: Watched) -> None:
    """Leaves in the folder of a job what a resumed night needs to watch it."""
    text = json.dumps({"id": one.slurm_id, "moves": one.moves, "leaving": one.leaving})
    write_text(one.task.folder / STATE_FILE, f"{text}\n")  # half of it, after a kill, would start the job twice


def _recall(folder: Path) -> tuple[str, list[str], bool]:
    """The id of the job under way in a folder, why it was moved, and whether it was cancelled for that."""
    try:
        known = json.loads(read_untrusted(folder, STATE_FILE))
        if not re.fullmatch(r"\d+(_\d+)?", str(known["id"])):  # the job can write here
            return "", [], False
        return str(known["id"]), list(known.get("moves", ())), bool(known.get("leaving"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", [], False


def say(one: Watched, text: str) -> None:
    """Adds a line to the log of a job, unless the job has put something else in its place."""
    with contextlib.suppress(OSError):
        append_untrusted(one.task.folder, STDERR, f"{text}\n")
