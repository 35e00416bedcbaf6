"""The run of one job: prepare its folder and environment, call its executor, read its result.

In: a job and a folder. Out: an outcome, also written to `outcome.json`. It records every failure of the job.
`prepare` and `finish` are the steps before and after the executor, for callers that give an executor many jobs at once.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nightjar_ci.adapters.convert import adapt_job
from nightjar_ci.counters.measure import add_samples, with_front_end
from nightjar_ci.environments.current import Interpreter
from nightjar_ci.environments.git_tree import read_git
from nightjar_ci.environments.installed import find_version
from nightjar_ci.environments.package_source import make_source
from nightjar_ci.environments.prepare import Environments, PreparedEnvironment
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.executors import EXECUTORS, BatchExecutor, OnLine, Task
from nightjar_ci.executors.ending import not_started
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now, read_checked
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.suite import SuiteOptions
from nightjar_ci.suites.collect import collect_suite, read_failing, rerun_folder
from nightjar_ci.suites.command import LAST_FAILED, with_last_failed, with_report, with_time_limit
from nightjar_ci.untrusted.border import clean_output
from nightjar_ci.untrusted.files import create_untrusted, read_untrusted
from nightjar_ci.untrusted.inheritance import list_secrets
from nightjar_ci.untrusted.masking import Mask, make_mask

DISK_HINT = "is the disk full? Make room; `--resume` continues the night"


def run_job(
    job: Job,
    folder: Path,
    environments: Environments | None = None,
    on_line: OnLine | None = None,
    on_step: OnLine | None = None,
) -> Outcome:
    """Runs one job and reads its result; the outcome records everything that goes wrong with the job.

    Args:
        folder: the job's `{out}`; files of an earlier run are removed.
        on_line: called with the job's last line of output.
        on_step: called when its environment is being made, and when its tests begin; default: `on_line`.

    Returns:
        The outcome, also written to `outcome.json`.
    """
    if environments is None:
        environments = Environments()
    on_step = on_step or on_line
    task = prepare(job, folder, environments, on_line, on_step)
    if isinstance(task, Outcome):
        return task
    if on_step is not None and job.kind == "test":
        on_step(describe_time(job))
    return finish(task.job, task.folder, execute(task), task.environment)


def describe_time(job: Job) -> str:
    """The message that a job's tests begin, with their time limit."""
    limit_s = job.tests.limit_s if job.tests is not None else None
    bound_s = job.timeout_s if limit_s is None else min(limit_s, job.timeout_s)
    length = f"{bound_s:g} s" if bound_s < 60 else f"{bound_s / 60:.3g} min"
    if limit_s is None:
        return f"running its tests, at most {length}"
    return f"running its tests; none begins after {length}"


def execute(task: Task) -> Outcome:
    """Runs a prepared job; its secrets are masked in its folder and its outcome, also after an interruption."""
    started_at = now()
    try:
        return execute_on_sound_disk(task)
    except OSError as error:
        return conceal(task, _unwritable(task.job, task.folder, error, started_at))


def execute_on_sound_disk(task: Task) -> Outcome:
    """Runs a prepared job like `execute`, for callers that stop if this machine's disk fails."""
    started_at = now()
    try:
        outcome = _run(task)
    except OSError:
        task.mask.clean(task.folder)
        raise
    except Exception as error:  # one job must not end the night
        outcome = not_run(task.job, error, started_at)
    except BaseException:
        task.mask.clean(task.folder)
        raise
    return conceal(task, outcome)


def _run(task: Task) -> Outcome:
    executor = EXECUTORS[task.job.executor]

    def run(job: Job, folder: Path) -> Outcome:
        return executor.run(job, task.environment, folder, task.on_line)

    job = with_front_end(task.job, task.folder)
    if job.kind == "test":
        return run_tests(replace(task, job=job), run)
    return run(job, task.folder)


def conceal(task: Task, outcome: Outcome) -> Outcome:
    """Cleans the job's folder and masks secrets there and in its outcome, which is `invalid` if that fails."""
    state, message = outcome.state, outcome.message
    secrets = list_secrets(os.environ, task.job.secrets)  # it was not given these
    if removed := clean_output(task.folder, secrets=secrets):
        message = _add_line(message, f"{outcome.job}: {removed}.")
    unmasked = task.mask.clean(task.folder)
    if unmasked:
        state = "invalid"
        message = _add_line(
            message,
            f"{outcome.job}: {unmasked[0]} may hold a secret and cannot be masked or removed: do not publish it.",
        )
    if message is not None:
        message = Mask((*task.mask.values, *secrets)).text(message)
    command = tuple(map(task.mask.text, outcome.command))
    return outcome.model_copy(update={"state": state, "message": message, "command": command})


def _add_line(message: str | None, line: str) -> str:
    return f"{message}\n{line}" if message else line


def prepare(
    job: Job,
    folder: Path,
    environments: Environments,
    on_line: OnLine | None = None,
    on_step: OnLine | None = None,
) -> Task | Outcome:
    """Prepares a job's folder and environment; returns its outcome if that fails.

    A folder whose job is still in an executor's queue, from an interrupted night, is left unchanged.
    """
    started_at = now()
    executor = EXECUTORS[job.executor]
    try:
        if not (isinstance(executor, BatchExecutor) and executor.under_way(folder)):
            if any(isinstance(other, BatchExecutor) and other.under_way(folder) for other in EXECUTORS.values()):
                raise InputError(f"{folder} is of a job in a queue.", "resume with the options of the first call")
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        mask = make_mask(job.secrets, os.environ)
        environment = environments.get(job.environment, on_step or on_line)
        if job.source is not None:
            job = job.with_source(make_source(job.source, environment, environments.settings))
        return Task(job, environment, folder, on_line and mask.listener(on_line), mask)
    except (EnvironmentFailedError, InputError) as error:
        outcome = not_started(job, error.message, error.hint, started_at)
    except OSError as error:
        outcome = _unwritable(job, folder, error, started_at)
    except Exception as error:
        outcome = not_run(job, error, started_at)
    return finish(job, folder, outcome)


def finish(job: Job, folder: Path, outcome: Outcome, environment: PreparedEnvironment | None = None) -> Outcome:
    """Reads a job's result, and writes `outcome.json`.

    Args:
        environment: its environment; None if that could not be made.
    """
    interpreter = None
    outcome = outcome.model_copy(update={"env": job.variables, "adapter": job.adapter})
    if environment is not None and environment.interpreter is not None:
        interpreter = environment.interpreter
        tested = {
            "python": str(interpreter.executable),
            "local_packages": environment.local_packages,
            "jax": find_version("jax", interpreter.path),
        }
        outcome = outcome.model_copy(update=tested)
    try:
        outcome = read_output(job, outcome, folder, Path.cwd(), interpreter)
    except OSError as error:
        outcome = _unwritable(job, folder, error, outcome.started_at)
    if job.kind == "test":
        outcome = _collect_tests(job, outcome, folder, interpreter)
    try:
        outcome = add_counters(job, outcome, folder)
    except OSError as error:
        outcome = _unwritable(job, folder, error, outcome.started_at)
    outcome, _ = read_checked(outcome, folder)
    try:
        write_json(folder / "outcome.json", outcome)
    except OSError as error:
        line = f"{job.id}: outcome.json cannot be written: {error}. Hint: {DISK_HINT}"
        return outcome.model_copy(update={"message": _add_line(outcome.message, line)})
    return outcome


def add_counters(job: Job, outcome: Outcome, folder: Path) -> Outcome:
    """Adds to the result of a completed job what the matrix measures; the outcome is `invalid` if that fails."""
    if job.measure and outcome.completed:
        try:
            add_samples(job, folder)
        except InputError as error:
            message = f"{job.id}: exit code 0, but it could not be measured: {error}"
            return outcome.model_copy(update={"state": "invalid", "message": message})
    return outcome


def read_output(job: Job, outcome: Outcome, folder: Path, source: Path, interpreter: Interpreter | None) -> Outcome:
    """Makes the result of a completed job that has an adapter; the outcome is `invalid` if that fails."""
    if job.adapter is None or not outcome.completed:
        return outcome
    try:
        adapt_job(outcome, job.adapter, folder, read_git(source), job.timeout_s, interpreter)
    except OSError:
        raise
    except InputError as error:
        message = f"{job.id}: exit code 0, but its adapter cannot read its output: {error}"
    except Exception as error:  # no output of a job may end the night
        message = f"{job.id}: exit code 0, but its adapter failed with {type(error).__name__}: {error}"
    else:
        return outcome
    return outcome.model_copy(update={"state": "invalid", "message": message})


def _collect_tests(job: Job, outcome: Outcome, folder: Path, interpreter: Interpreter | None) -> Outcome:
    try:
        return collect_suite(job, outcome, folder, interpreter, read_git(Path.cwd()))
    except InputError as error:
        message = f"{job.id}: exit code {outcome.exit_code}, but its tests cannot be read: {error}"
        return outcome.model_copy(update={"state": "invalid", "message": message})
    except OSError as error:
        return _unwritable(job, folder, error, outcome.started_at)


def not_run(job: Job, error: Exception, started_at: str) -> Outcome:
    problem = f"{type(error).__name__}: {error}."
    return not_started(job, problem, "this is a bug in nightjar-ci; the night continues without this job", started_at)


def _unwritable(job: Job, folder: Path, error: OSError, started_at: str) -> Outcome:
    return not_started(job, f"{folder} cannot be written: {error}.", DISK_HINT, started_at)


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
