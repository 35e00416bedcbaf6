"""The scheduler of a night's jobs: one job per worker, and all jobs of a cluster in its queue at once.

In: jobs in their order. Out: their outcomes in the order in which they end, one by one to the calling thread, which
alone writes the night and the store. If the caller stops iterating (Ctrl-C, an error), all running jobs are killed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.executors import EXECUTORS, BatchExecutor, Task
from nightjar_ci.executors.process import end_running
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import job_folder, now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.night.run_job import conceal, finish, not_run, prepare, run_job
from nightjar_ci.suites.command import with_report

_JOIN_S = 0.2


def run_jobs(
    jobs: Sequence[Job],
    night_folder: Path,
    environments: Environments,
    *,
    workers: int,
    on_start: Callable[[str], None],
    on_line: Callable[[str, str], None],
    on_step: Callable[[str, str], None],
) -> Generator[Outcome]:
    """Runs jobs and yields the outcome of each as it ends.

    Args:
        on_start: called with the id of a job that starts on this machine.
        on_line: called with a job's id and its last line of output; from any thread.
        on_step: called with a job's id when its environment is being made and when its tests begin; from any thread.
    """
    pool = _WorkerPool(night_folder, environments, on_start, on_line, on_step)
    local = [job for job in jobs if not isinstance(EXECUTORS[job.executor], BatchExecutor)]
    if workers == 1 and len(local) == len(jobs):
        for job in jobs:  # in this thread: an interruption reaches the job itself
            on_start(job.id)
            folder = job_folder(night_folder, job.id)
            yield run_job(job, folder, environments, partial(on_line, job.id), partial(on_step, job.id))
        return
    waiting = deque(local)
    for _ in range(min(workers, len(local))):
        pool.start(partial(pool.drain, waiting))
    for name, executor in EXECUTORS.items():
        queued = [job for job in jobs if job.executor == name]
        if queued and isinstance(executor, BatchExecutor):
            pool.start(partial(pool.submit, executor, queued))
    try:
        for _ in jobs:
            outcome = pool.outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        pool.shut_down()


class _WorkerPool:
    """The worker threads of one night."""

    def __init__(
        self,
        night_folder: Path,
        environments: Environments,
        on_start: Callable[[str], None],
        on_line: Callable[[str, str], None],
        on_step: Callable[[str, str], None],
    ) -> None:
        self.outcomes: Queue[Outcome | BaseException] = Queue()
        self._night_folder, self._environments = night_folder, environments
        self._on_start, self._on_line, self._on_step = on_start, on_line, on_step
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.outcomes.put(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def drain(self, waiting: deque[Job]) -> None:
        while not self._stop.is_set():
            try:
                job = waiting.popleft()
            except IndexError:
                return
            self._on_start(job.id)
            listeners = partial(self._on_line, job.id), partial(self._on_step, job.id)
            outcome = run_job(job, self._folder(job), self._environments, *listeners)
            if not self._stop.is_set():  # a job that was killed by the shutdown has no outcome
                self.outcomes.put(outcome)

    def submit(self, executor: BatchExecutor, jobs: Sequence[Job]) -> None:
        tasks: list[Task] = []
        for job in jobs:
            listeners = partial(self._on_line, job.id), partial(self._on_step, job.id)
            prepared = prepare(job, self._folder(job), self._environments, *listeners)
            if isinstance(prepared, Outcome):
                self.outcomes.put(prepared)
            else:
                tasks.append(prepared)
        if not tasks or self._stop.is_set():
            return
        running = {task.job.id: task for task in tasks}
        tests = (replace(task, job=with_report(task.job)) if task.job.kind == "test" else task for task in tasks)

        def complete(task: Task, outcome: Outcome) -> None:
            own = running.pop(task.job.id)
            self.outcomes.put(finish(own.job, own.folder, conceal(own, outcome), own.environment))

        try:
            executor.run_many(list(tests), complete, self._stop)
        except Exception as error:  # the executor has cancelled the jobs that it had submitted
            for task in list(running.values()):
                complete(task, not_run(task.job, error, now()))
        finally:
            for task in running.values():  # cancelled: it has no outcome
                task.mask.clean(task.folder)

    def shut_down(self) -> None:
        self._stop.set()
        while any(thread.is_alive() for thread in self._threads):
            end_running()
            for thread in self._threads:
                thread.join(_JOIN_S)

    def _folder(self, job: Job) -> Path:
        return job_folder(self._night_folder, job.id)
