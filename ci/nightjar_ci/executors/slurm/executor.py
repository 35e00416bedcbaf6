"""How do jobs run on a Slurm cluster? As batches: submitted, watched with back-off, started again elsewhere.

Jobs with equal needs become one array. A node that fails and a preemption put a job back into the queue, by Slurm's
own `--requeue` or, where the cluster does not do that, by submitting it again without the nodes it failed on; its
folder, and so its checkpoint, stays. A node that is drained lets its jobs end; we move ours away in the same manner. A
night that is resumed after `nightjar-ci` was killed watches the jobs that are under way instead of starting them again.

submitit is not used: it runs pickled Python functions in one interpreter and asks `sacct` alone; a job here is a
command line in an environment or image of its own, on clusters with and without slurmdbd.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.errors import ExecutorError
from nightjar_ci.executors.base import OnLine, Task
from nightjar_ci.executors.ending import not_started
from nightjar_ci.executors.process import ended_by
from nightjar_ci.executors.slurm.cluster import Cluster, JobState
from nightjar_ci.executors.slurm.drain import say_drained
from nightjar_ci.executors.slurm.ending import judge_slurm_end, read_exit
from nightjar_ci.executors.slurm.script import render_batch
from nightjar_ci.executors.slurm.watched import STATE_FILE, Watched, prepare, remember, say
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.inheritance import inherit

_BROKEN = frozenset(("NODE_FAIL", "BOOT_FAIL"))  # the nodes themselves
LOST: Final = _BROKEN | {"PREEMPTED"}  # the cluster's doing: worth another attempt
_SHORTEST_S, _LONGEST_S = 0.25, 15.0  # between two questions: soon after a change, ever less often without one
_LOOK_S = 0.5  # between two looks at the logs, which cost the cluster nothing
_EXIT_FILE_S = 20.0  # a shared file system may show a node's file late


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
        self._moves = read_settings().slurm_drain == "move"
        self._open: list[Watched] = []

    def run(self, tasks: Sequence[Task]) -> None:
        self._open = [prepare(task) for task in tasks]
        try:
            self._submit([one for one in self._open if not one.slurm_id])
            pause, last = _SHORTEST_S, time.monotonic()
            while self._open and not self._stop.is_set():
                self._stop.wait(min(pause, _LOOK_S))
                self._follow()
                if time.monotonic() - last < pause:
                    continue
                changed = self._ask() | self._leave_drained()
                last = time.monotonic()
                pause = _SHORTEST_S if changed else min(pause * 1.3, _LONGEST_S, self._until_timeout())
        except ExecutorError as error:
            for one in list(self._open):
                self._end(one, _lost_sight(one, error))
        finally:  # interrupted, or the others are of no use any more
            self._cancel(self._open)

    def _submit(self, watched: Sequence[Watched]) -> None:
        """Submits jobs: those with equal needs as arrays."""
        groups: dict[object, list[Watched]] = {}
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

    def _submit_together(self, group: Sequence[Watched]) -> None:
        first = group[0]
        name = f"nightjar-{first.job.id}" if len(group) == 1 else f"nightjar-{len(group)}-jobs"
        script = render_batch(name, first.place, [one.cell for one in group], sorted(first.excluded))
        try:
            environ = first.task.environment.entered(inherit(os.environ, first.place.passed))
            slurm_id = self._cluster.submit(script, environ)
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
            one.state, one.unseen_since, one.ended_since, one.leaving = None, None, None, False
            remember(one)

    def _ask(self) -> bool:
        """Asks what became of the jobs; whether anything changed."""
        before = [(one.slurm_id, one.state and one.state.state) for one in self._open]
        states = self._cluster.states([one.slurm_id for one in self._open])
        again: list[Watched] = []
        for one in list(self._open):
            state = states.get(one.slurm_id)
            if state is None:
                state = self._forgotten(one)
            if state is None:
                continue
            one.unseen_since, one.state = None, state
            if state.ended:
                gone = state.state in LOST or (one.leaving and state.state == "CANCELLED")
                if gone and one.may_start_again:
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
            elif one.moves and state.state == "PENDING" and state.reason not in ("", one.waits_for):
                one.waits_for = state.reason
                say(one, f"nightjar: {one.slurm_id} waits: {state.reason}")
        for one in again:
            assert one.state is not None
            one.excluded.update(node for node in (one.state.nodes,) if node and one.state.state in _BROKEN)
            say(one, f"nightjar: {one.slurm_id} ended with {one.state.state} on {one.state.nodes}: submitted again")
        self._submit(again)
        return before != [(one.slurm_id, one.state and one.state.state) for one in self._open]

    def _leave_drained(self) -> bool:
        """Moves jobs away from nodes that are drained; whether one was moved."""
        movable = [one for one in self._open if one.movable] if self._moves else []
        drained = self._cluster.drained_nodes() if movable else {}
        there = [one for one in movable if one.state is not None and say_drained(one.state.nodes, drained)]
        moved = False
        for one in there:
            with contextlib.suppress(ExecutorError):  # the next time, then
                moved = self._move(one, drained) or moved
        return moved

    def _move(self, one: Watched, drained: Mapping[str, str]) -> bool:
        """Lets a job start again elsewhere, as often as it may; one that ends by itself is left alone."""
        shown = self._cluster.show(one.slurm_id)  # accounts may say still that it runs, or where it ran before
        why = say_drained(shown.nodes, drained)
        if shown.state != "RUNNING" or not why or read_exit(one.task.folder) is not None:
            return False
        starts = shown.restarts + max(one.submissions, 1)
        if starts > one.place.restarts:
            one.stays = True
            say(one, f"nightjar: {why}: {one.slurm_id} stays, for it has started {starts} times")
            return False
        one.leaving = not self._cluster.requeue(one.slurm_id)
        one.moves.append(why)
        one.waits_for = ""
        remember(one)  # before it is cancelled, so that a resumed night submits it again
        if one.leaving:
            self._cluster.cancel([one.slurm_id])
        say(one, f"nightjar: {why}: {one.slurm_id} is to start again elsewhere")
        return True

    def _is_late(self, one: Watched, state: JobState) -> bool:
        """Whether a job runs longer than it may; one that accounts have as running only because they lag does not."""
        late = state.state == "RUNNING" and state.elapsed_s > one.job.timeout_s
        return late and not one.timed_out and read_exit(one.task.folder) is None

    def _forgotten(self, one: Watched) -> JobState | None:
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

    def _end(self, one: Watched, outcome: Outcome) -> None:
        self._open.remove(one)
        self._on_end(one.task, outcome)

    def _cancel(self, watched: Sequence[Watched]) -> None:
        submitted = [one for one in watched if one.slurm_id]
        if submitted:
            self._cluster.cancel([one.slurm_id for one in submitted])
            for one in submitted:
                (one.task.folder / STATE_FILE).unlink(missing_ok=True)


def _judge(one: Watched, state: JobState) -> Outcome | None:
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
        moves=one.moves,
    )


def _lost_sight(one: Watched, error: ExecutorError) -> Outcome:
    where = f"its Slurm job is {one.slurm_id}" if one.slurm_id else "it was not submitted"
    return make_outcome(
        one.job,
        state="killed" if one.slurm_id else "not_started",
        started_at=one.started_at,
        command=one.cell.command,
        message=f"{one.job.id}: {error.message}; {where}. Hint: {error.hint}",
    )
