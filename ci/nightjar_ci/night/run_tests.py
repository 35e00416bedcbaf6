"""The run of a test job: its command, then its failed tests again, to find the flaky ones.

In: a task of kind `test`. Out: the outcome of its command; each further run leaves its files in its own folder below
the job's. The timeout of the job is for all runs together, the limit of its tests for the first run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.executors import Task
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.suite import SuiteOptions
from nightjar_ci.suites.collect import read_failing, rerun_folder
from nightjar_ci.suites.command import LAST_FAILED, with_last_failed, with_report
from nightjar_ci.suites.time_limit import with_time_limit
from nightjar_ci.untrusted.files import create_untrusted, read_untrusted

MOST_RERUN = 100  # more failing tests are not flakiness
_SHORTEST_S = 1.0


def run_tests(task: Task, run: Callable[[Job, Path], Outcome]) -> Outcome:
    job, options = with_report(task.job), task.job.tests or SuiteOptions()
    begin = time.monotonic()
    outcome = run(with_time_limit(job, task.folder), task.folder)
    before = task.folder
    for number in range(1, options.reruns + 1):
        left_s = job.timeout_s - (time.monotonic() - begin)
        if outcome.state != "failed" or left_s < _SHORTEST_S or not _is_worth_it(before, options):
            break
        folder = rerun_folder(task.folder, number)
        folder.mkdir()
        _copy_last_failed(before, folder)
        run(replace(with_last_failed(job), timeout_s=left_s), folder)
        before = folder
    return outcome


def _is_worth_it(folder: Path, options: SuiteOptions) -> bool:
    try:
        return 0 < len(read_failing(folder, options)) <= MOST_RERUN
    except InputError:
        return False  # the outcome will say so


def _copy_last_failed(before: Path, folder: Path) -> None:
    """Passes on the names of failed tests; without it, pytest runs them all again."""
    try:
        contents = read_untrusted(before, LAST_FAILED)
        (folder / LAST_FAILED).parent.mkdir(parents=True)
        with create_untrusted((folder / LAST_FAILED).parent, Path(LAST_FAILED).name) as file:
            file.write(contents)
    except OSError:
        return
