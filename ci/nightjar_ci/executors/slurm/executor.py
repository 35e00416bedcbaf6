"""How do jobs run on a Slurm cluster? As batches: submitted, watched with back-off, started again elsewhere.

Jobs with equal needs become one array. A node that fails and a preemption put a job back into the queue, by Slurm's
own `--requeue` or, where the cluster does not do that, by submitting it again without the nodes it failed on; its
folder, and so its checkpoint, stays. The id of a job is in `slurm.json` of its folder: a night that is resumed after
`nightjar-ci` was killed watches the jobs that are under way instead of starting them again.

submitit is not used: it runs pickled Python functions in one interpreter and asks `sacct` alone; a job here is a
command line in an environment or image of its own, on clusters with and without slurmdbd.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from nightjar_ci.environments import PreparedEnvironment
from nightjar_ci.errors import ExecutorError
from nightjar_ci.executors.base import OnLine, Task
from nightjar_ci.executors.ending import not_started
from nightjar_ci.executors.process import STDERR, Follower, ended_by
from nightjar_ci.executors.slurm.cluster import Cluster, JobState
from nightjar_ci.executors.slurm.ending import judge_slurm_end, read_exit
from nightjar_ci.executors.slurm.script import OUT, Cell, Place, render_batch
from nightjar_ci.job import Job
from nightjar_ci.night import now
from nightjar_ci.outcome import Outcome, make_outcome
from nightjar_ci.settings import read_settings

STATE_FILE = "slurm.json"
LOST: Final = frozenset(("NODE_FAIL", "BOOT_FAIL", "PREEMPTED"))  # the cluster's doing: worth another attempt
_SHORTEST_S, _LONGEST_S = 0.25, 15.0  # between two questions: soon after a change, ever less often without one
_LOOK_S = 0.5  # between two looks at the logs, which cost the cluster nothing
_EXIT_FILE_S = 20.0  # a shared file system may show a node's file late


@dataclass(slots=True)
class _Watched:
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
    follower: Follower | None = None

    @property
    def job(self) -> Job:
        return self.task.job


@dataclass(frozen=True, slots=True)
class SlurmExecutor:
    """Runs jobs through sbatch and srun, on as many nodes as they ask for."""

    kinds: frozenset[str] = frozenset({"current", "uv", "image"})
    runs_several_tasks: bool = True
    pins_cpus: bool = False

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        """Runs a job to its end (see `Executor`)."""
        outcomes: list[Outcome] = []
        stop = threading.Event()
        with ended_by(stop.set):
            self.run_many([Task(job, environment, folder, on_line)], lambda _, outcome: outcomes.append(outcome), stop)
        if outcomes:
            return outcomes[0]
        return make_outcome(job, state="killed", started_at=now(), message=f"{job.id}: cancelled with its caller.")

    def under_way(self, folder: Path) -> bool:
        """Whether a job was submitted from this folder and its end not seen."""
        return (folder / STATE_FILE).is_file() and not (folder / "outcome.json").exists()

    def run_many(
        self,
        tasks: Sequence[Task],
        on_end: Callable[[Task, Outcome], None],
        stop: threading.Event | None = None,
    ) -> None:
        """Runs jobs at the same time, as far as the cluster has room.

        Args:
            tasks: what to run; one whose folder has a job under way is watched on.
            on_end: called with each task as it ends.
            stop: once set, all that has not ended is cancelled, and nothing more is said of it.
        """
        watch = _Watch(Cluster(), on_end, stop or threading.Event())
        watch.run(list(tasks))


class _Watch:
    """The jobs of one call of `run_many`."""

    def __init__(self, cluster: Cluster, on_end: Callable[[Task, Outcome], None], stop: threading.Event) -> None:
        self._cluster, self._on_end, self._stop = cluster, on_end, stop
        self._open: list[_Watched] = []

    def run(self, tasks: Sequence[Task]) -> None:
        self._open = [_prepare(task) for task in tasks]
        try:
            self._submit([one for one in self._open if not one.slurm_id])
            pause, last = _SHORTEST_S, time.monotonic()
            while self._open and not self._stop.is_set():
                self._stop.wait(min(pause, _LOOK_S))
                self._follow()
                if time.monotonic() - last < pause:
                    continue
                changed = self._ask()
                last = time.monotonic()
                pause = _SHORTEST_S if changed else min(pause * 1.3, _LONGEST_S, self._until_timeout())
        except ExecutorError as error:
            for one in list(self._open):
                self._end(one, _lost_sight(one, error))
        finally:  # interrupted, or the others are of no use any more
            self._cancel(self._open)

    def _submit(self, watched: Sequence[_Watched]) -> None:
        """Submits jobs: those with equal needs as arrays."""
        groups: dict[object, list[_Watched]] = {}
        for one in watched:
            key = (one.place, tuple(sorted(one.task.environment.entered({}).items())), tuple(sorted(one.excluded)))
            groups.setdefault(repr(key), []).append(one)
        for group in groups.values():
            size = self._largest_array() if len(group) > 1 else 1
            for start in range(0, len(group), size):
                self._submit_together(group[start : start + size])

    def _largest_array(self) -> int:
        allowed = self._cluster.config("MaxArraySize")
        return max(1, min(1000, int(allowed) - 1)) if allowed.isdigit() else 1000

    def _submit_together(self, group: Sequence[_Watched]) -> None:
        first = group[0]
        name = f"nightjar-{first.job.id}" if len(group) == 1 else f"nightjar-{len(group)}-jobs"
        script = render_batch(name, first.place, [one.cell for one in group], sorted(first.excluded))
        try:
            slurm_id = self._cluster.submit(script, first.task.environment.entered(os.environ))
        except ExecutorError as error:
            if first.excluded:  # without those nodes too few are left: wait for them
                for one in group:
                    one.excluded.clear()
                self._submit_together(group)
                return
            for one in group:
                self._end(one, not_started(one.job, error.message, error.hint, one.started_at, one.cell.command))
            return
        for number, one in enumerate(group):
            one.slurm_id = slurm_id if len(group) == 1 else f"{slurm_id}_{number}"
            one.submissions += 1
            one.state, one.unseen_since, one.ended_since = None, None, None
            _remember(one)

    def _ask(self) -> bool:
        """Asks what became of the jobs; whether anything changed."""
        before = [(one.slurm_id, one.state and one.state.state) for one in self._open]
        states = self._cluster.states([one.slurm_id for one in self._open])
        again: list[_Watched] = []
        for one in list(self._open):
            state = states.get(one.slurm_id)
            if state is None:
                state = self._forgotten(one)
            if state is None:
                continue
            one.unseen_since, one.state = None, state
            if state.ended:
                if state.state in LOST and one.submissions <= one.place.restarts and not one.timed_out:
                    again.append(one)
                elif (outcome := _judge(one, state)) is not None:
                    self._end(one, outcome)
            elif state.hopeless:
                self._cluster.cancel([one.slurm_id])
                problem = f"Slurm lets it wait for ever: {state.reason}."
                hint = "ask for less in resources, or for another partition in NIGHTJAR_SLURM_OPTIONS"
                self._end(one, not_started(one.job, problem, hint, one.started_at, one.cell.command))
            elif self._is_late(one, state):
                one.timed_out = True
                self._cluster.cancel([one.slurm_id])
        for one in again:
            assert one.state is not None
            one.excluded.update(node for node in (one.state.nodes,) if node and one.state.state != "PREEMPTED")
            _say(one, f"nightjar: {one.slurm_id} ended with {one.state.state} on {one.state.nodes}: submitted again")
        self._submit(again)
        return before != [(one.slurm_id, one.state and one.state.state) for one in self._open]

    def _is_late(self, one: _Watched, state: JobState) -> bool:
        """Whether a job runs longer than it may; one that accounts have as running only because they lag does not."""
        late = state.state == "RUNNING" and state.elapsed_s > one.job.timeout_s
        return late and not one.timed_out and read_exit(one.task.folder) is None

    def _forgotten(self, one: _Watched) -> JobState | None:
        """The state of a job that Slurm does not know: by what its script left; None while that may still come."""
        if (code := read_exit(one.task.folder)) is not None:
            return JobState(state="FAILED" if code[0] else "COMPLETED", exit_code=code[0])
        one.unseen_since = one.unseen_since or time.monotonic()
        return JobState(state="NODE_FAIL") if time.monotonic() - one.unseen_since > _EXIT_FILE_S else None

    def _until_timeout(self) -> float:
        """Seconds until the next job reaches its timeout, at least the shortest pause."""
        left = [
            one.job.timeout_s - one.state.elapsed_s
            for one in self._open
            if one.state is not None and one.state.state == "RUNNING"
        ]
        return max(_SHORTEST_S, min(left, default=_LONGEST_S))

    def _follow(self) -> None:
        for one in self._open:
            if one.follower is not None:
                one.follower.look()

    def _end(self, one: _Watched, outcome: Outcome) -> None:
        self._open.remove(one)
        self._on_end(one.task, outcome)

    def _cancel(self, watched: Sequence[_Watched]) -> None:
        submitted = [one for one in watched if one.slurm_id]
        if submitted:
            self._cluster.cancel([one.slurm_id for one in submitted])
            for one in submitted:
                (one.task.folder / STATE_FILE).unlink(missing_ok=True)


def _prepare(task: Task) -> _Watched:
    settings = read_settings()
    folder, image, work = task.folder.absolute(), task.environment.image, task.environment.folder
    command, variables = task.job.rendered(folder if image is None else PurePosixPath(OUT))
    if image is not None:
        variables["NIGHTJAR_IMAGE"] = image
    return _Watched(
        task,
        place=Place(
            resources=task.job.resources,
            timeout_s=task.job.timeout_s,
            image=image,
            work=None if work is None else str(work.absolute()),
            options=settings.slurm_options,
        ),
        cell=Cell(folder=str(folder), command=command, variables=variables),
        started_at=now(),
        slurm_id=_recall(task.folder),
        follower=Follower(task.folder / STDERR, task.on_line) if task.on_line is not None else None,
    )


def _remember(one: _Watched) -> None:
    (one.task.folder / STATE_FILE).write_text(json.dumps({"id": one.slurm_id}) + "\n", encoding="utf-8")


def _recall(folder: Path) -> str:
    """The id of the job under way in a folder; empty where there is none."""
    try:
        return str(json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _say(one: _Watched, text: str) -> None:
    with (one.task.folder / STDERR).open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")


def _judge(one: _Watched, state: JobState) -> Outcome | None:
    """The outcome of a job that has ended; None while its last file has not come from its node."""
    if state.state == "COMPLETED" and not one.timed_out and read_exit(one.task.folder) is None:
        one.ended_since = one.ended_since or time.monotonic()
        if time.monotonic() - one.ended_since < _EXIT_FILE_S:
            return None
    return judge_slurm_end(
        one.job,
        state,
        one.task.folder,
        cancelled=one.timed_out,
        command=one.cell.command,
        started_at=one.started_at,
        slurm_id=one.slurm_id,
        submissions=one.submissions,
    )


def _lost_sight(one: _Watched, error: ExecutorError) -> Outcome:
    where = f"its Slurm job is {one.slurm_id}" if one.slurm_id else "it was not submitted"
    return make_outcome(
        one.job,
        state="killed" if one.slurm_id else "not_started",
        started_at=one.started_at,
        command=one.cell.command,
        message=f"{one.job.id}: {error.message}; {where}. Hint: {error.hint}",
    )
