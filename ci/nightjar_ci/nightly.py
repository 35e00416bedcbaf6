"""What happens in a night, in order? Run every job, compare with the reference environment, gate, report.

In: a matrix, policies, baselines. Out: the path of `report.html` and the night's exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from nightjar_ci.baselines import read_convergence
from nightjar_ci.environments import Environments, parse_environment
from nightjar_ci.errors import InputError
from nightjar_ci.gate import find_exit_code, gate_night
from nightjar_ci.job import Job
from nightjar_ci.matrix import expand, move_job, read_matrix, select_jobs
from nightjar_ci.night import new_night_id, read_result
from nightjar_ci.outcome import Outcome
from nightjar_ci.paired import jobs_to_compare, run_pairs
from nightjar_ci.policy import PerformancePolicy, read_policies
from nightjar_ci.progress import NightProgress
from nightjar_ci.report.contents import gather
from nightjar_ci.report.terminal import print_verdicts
from nightjar_ci.report.write import write_reports
from nightjar_ci.run import run_job, run_night
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store


def run_nightly(
    matrix_path: Path,
    *,
    reference: str | None,
    folder: Path | None,
    policies_path: Path,
    baselines: Path,
    pattern: str | None,
    executor: str | None,
    environment: str | None,
) -> tuple[Path, int]:
    """Runs, gates and reports a night; whatever people wrote is read first, so that a typo costs no training.

    Raises:
        InputError: matrix, policies, baselines or an option cannot be read.
        StoreError: the store cannot be opened.
    """
    matrix, policies, settings = read_matrix(matrix_path), read_policies(policies_path), read_settings()
    chosen = select_jobs(expand(matrix), pattern=pattern)
    jobs = [move_job(job, executor=executor, environment=environment) for job in chosen]
    for cell in dict.fromkeys(job.cell for job in jobs):
        read_convergence(baselines, cell)
    if reference is not None:
        _check_reference(reference)
    folder = folder or settings.nights_dir / new_night_id()
    store, environments = open_store(settings), Environments(settings=settings)
    run_night(matrix, folder, jobs=jobs, store=store, environments=environments)
    if reference is not None:
        _compare(jobs_to_compare(jobs, policies), reference, folder, environments)
    verdicts = gate_night(folder, policies, baselines, store)
    print_verdicts(verdicts, Console(stderr=True))
    path = write_reports(folder, gather(folder, verdicts, policies, baselines, store))
    return path, find_exit_code(folder, verdicts)


def _check_reference(reference: str) -> None:
    try:
        parse_environment(reference)
    except ValueError as error:
        raise InputError(f"--reference: {error}.") from None


def _compare(
    compared: Sequence[tuple[Job, PerformancePolicy]], reference: str, folder: Path, environments: Environments
) -> None:
    """Runs the pairs of every job that has a performance policy, with progress on stderr."""
    with NightProgress(sum(2 * policy.looks[-1] for _, policy in compared)) as progress:

        def run(job: Job, here: Path) -> Outcome:
            progress.start(f"{job.id} in {job.environment}")
            outcome = run_job(job, here, environments, progress.on_line)
            progress.end(outcome)
            return outcome

        for job, policy in compared:
            run_pairs(job, reference, folder, policy, run=run, read=read_result)
