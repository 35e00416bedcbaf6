"""The scheduler of a night's jobs: one job per worker, and all jobs of a cluster in its queue at once.

In: jobs in their order. Out: their outcomes in the order in which they end, one by one to the calling thread, which
alone writes the night and the store. If the caller stops iterating (Ctrl-C, an error), all running jobs are ended.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from queue import Queue

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.executors import EXECUTORS, BatchExecutor, OnLine, Task
from nightjar_ci.executors.process import end_running
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import job_folder, now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.night.run_job import conceal, finish, not_run, prepare, run_job

_JOIN_S = 0.2


def run_jobs(
    jobs: Sequence[Job],
    night_folder: Path,
    environments: Environments,
    *,
    workers: int,
    on_start: Callable[[str], None],
    on_line: Callable[[str, str], None],
) -> Generator[Outcome]:
    """Runs jobs to their ends.

    Args:
        jobs: what to run.
        night_folder: the folder of their night.
        environments: prepared so far.
        workers: how many run on this machine at the same time.
        on_start: called with the id of a job that starts on this machine.
        on_line: called with the last line that a job has written, and its id; from any thread.

    Yields: the outcome of each job as it ends.
    """
    crew = _Crew(night_folder, environments, on_start, on_line)
    here = [job for job in jobs if not isinstance(EXECUTORS[job.executor], BatchExecutor)]
    if workers == 1 and len(here) == len(jobs):
        for job in jobs:  # in this thread: an interruption reaches the job itself
            on_start(job.id)
            yield run_job(job, job_folder(night_folder, job.id), environments, partial(on_line, job.id))
        return
    waiting = deque(here)
    crew.add(*[partial(crew.work_off, waiting)] * min(workers, len(here)))
    for name, executor in EXECUTORS.items():
        queued = [job for job in jobs if job.executor == name]
        if queued and isinstance(executor, BatchExecutor):
            crew.add(partial(crew.queue, executor, queued))
    try:
        for _ in jobs:
            end = crew.ends.get()
            if isinstance(end, BaseException):
                raise end
            yield end
    finally:
        crew.dismiss()


class _Crew:
    """The threads of one night."""

    def __init__(
        self,
        night_folder: Path,
        environments: Environments,
        on_start: Callable[[str], None],
        on_line: Callable[[str, str], None],
    ) -> None:
        self.ends: Queue[Outcome | BaseException] = Queue()
        self._night_folder, self._environments = night_folder, environments
        self._on_start, self._on_line = on_start, on_line
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, *works: Callable[[], None]) -> None:
        """Starts a thread for each piece of work; what goes wrong in one is raised by the reader of `ends`."""

        def run(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                self.ends.put(error)

        for work in works:
            self._threads.append(threading.Thread(target=run, args=(work,), daemon=True))
            self._threads[-1].start()

    def work_off(self, waiting: deque[Job]) -> None:
        """Runs one job after the other until none is left."""
        while not self._stop.is_set():
            try:
                job = waiting.popleft()
            except IndexError:
                return
            self._on_start(job.id)
            outcome = run_job(job, self._folder(job), self._environments, self._listener(job))
            if not self._stop.is_set():  # one that was ended for us is no outcome of the night
                self.ends.put(outcome)

    def queue(self, executor: BatchExecutor, jobs: Sequence[Job]) -> None:
        """Gives an executor all of its jobs."""
        prepared = [prepare(job, self._folder(job), self._environments, self._listener(job)) for job in jobs]
        for one in prepared:
            if isinstance(one, Outcome):
                self.ends.put(one)
        tasks = [one for one in prepared if isinstance(one, Task)]
        if not tasks or self._stop.is_set():
            return
        left = {task.job.id: task for task in tasks}

        def take_in(task: Task, outcome: Outcome) -> None:
            del left[task.job.id]
            self.ends.put(finish(task.job, task.folder, conceal(task, outcome), task.environment))

        try:
            executor.run_many(tasks, take_in, self._stop)
        except Exception as error:  # it has cancelled what it had submitted
            for task in list(left.values()):
                take_in(task, not_run(task.job, error, now()))
        finally:
            for task in left.values():  # cancelled: it has no outcome
                task.mask.clean(task.folder)

    def dismiss(self) -> None:
        """Ends what still runs; afterwards nothing does."""
        self._stop.set()
        while any(thread.is_alive() for thread in self._threads):
            end_running()
            for thread in self._threads:
                thread.join(_JOIN_S)

    def _folder(self, job: Job) -> Path:
        return job_folder(self._night_folder, job.id)

    def _listener(self, job: Job) -> OnLine:
        return partial(self._on_line, job.id)
