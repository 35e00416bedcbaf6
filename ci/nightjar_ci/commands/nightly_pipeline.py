"""The steps of a night, in order: run, compare, confirm, gate, report.

In: a matrix, policies, baselines. Out: the path of `report.html` and the night's exit code. `run_nightly` runs the
jobs, compares them with a reference environment if there is one, re-runs suspicious series,
gates the night and writes the report. `confirm_night` does the last three steps for an existing night.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.causes.explained import ask
from nightjar_ci.causes.tonight import gather_causes
from nightjar_ci.environments.prepare import Environments, PreparedEnvironment, parse_environment
from nightjar_ci.environments.worktree import has_commit
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import Options, new_night_id, read_night, read_result
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies, read_policies
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.gate.advice import render_confirm
from nightjar_ci.gate.earlier_nights import import_earlier
from nightjar_ci.gate.gate import find_exit_code, gate_night
from nightjar_ci.gate.history import remember, screen_histories
from nightjar_ci.gate.reruns import EnvironmentOf, find_reruns, plan_confirmations
from nightjar_ci.night.lock import hold_folder
from nightjar_ci.night.matrix import choose_jobs, expand, move_job, read_matrix
from nightjar_ci.night.paired_runs import Comparison, jobs_to_compare, run_pairs
from nightjar_ci.night.progress import NightProgress
from nightjar_ci.night.run import run_night
from nightjar_ci.night.run_job import run_job
from nightjar_ci.report.contents import gather
from nightjar_ci.report.terminal import print_causes, print_checked, print_verdicts
from nightjar_ci.report.write import write_reports
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, open_store
from nightjar_ci.store.folder import import_night
from nightjar_ci.untrusted.console import open_console


def run_nightly(
    matrix_path: Path,
    *,
    reference: str | None,
    folder: Path | None,
    policies_path: Path,
    baselines: Path,
    options: Options,
) -> tuple[Path, int]:
    """Runs, gates and reports a night; all input files are read first, so that a typo costs no training."""
    matrix, policies, settings = read_matrix(matrix_path), read_policies(policies_path), read_settings()
    jobs = choose_jobs(matrix, options)
    for cell in dict.fromkeys(job.cell for job in jobs):
        read_convergence(baselines, cell)
    if reference is not None:
        try:
            parse_environment(reference)
        except ValueError as error:
            raise InputError(f"--reference: {error}.") from None
    folder = folder or settings.nights_dir / new_night_id()
    store = open_store(settings)
    with Environments(settings=settings) as environments:
        run_night(matrix, folder, jobs=jobs, store=store, environments=environments, options=options)
        with hold_folder(folder):
            if reference is not None:
                compared = jobs_to_compare(jobs, policies)
                pairs = [Comparison(job=job, reference=reference, how=way, numbers=way) for job, way in compared]
                _compare(pairs, folder, environments)
            _confirm(folder, jobs, policies, baselines, store, environments)
        return _conclude(folder, jobs, environments, policies, policies_path, baselines, store, matrix_path)


def confirm_night(folder: Path, matrix_path: Path, *, policies_path: Path, baselines: Path) -> tuple[Path, int]:
    """Re-runs the suspicious series of an existing night, then gates and reports it.

    Returns: the path of `report.html` and the night's exit code.
    """
    matrix, policies, settings = read_matrix(matrix_path), read_policies(policies_path), read_settings()
    store = open_store(settings)
    night = import_night(store, folder)
    if night.matrix != matrix.name:
        raise InputError(f"{folder} is a night of the matrix {night.matrix!r}, expected {matrix.name!r}.")
    ran = {outcome.job: outcome for outcome in night.jobs}
    jobs = [
        move_job(job, executor=ran[job.id].executor, environment=ran[job.id].environment)
        for job in expand(matrix)
        if job.id in ran
    ]
    with Environments(settings=settings) as environments:
        with hold_folder(folder):
            _confirm(folder, jobs, policies, baselines, store, environments)
        return _conclude(folder, jobs, environments, policies, policies_path, baselines, store, matrix_path)


def _confirm(
    folder: Path,
    jobs: Sequence[Job],
    policies: Policies,
    baselines: Path,
    store: Store,
    environments: Environments,
) -> None:
    """Runs the pairs of the series that need re-runs; pairs of an earlier call are removed."""
    for note in import_earlier(store, folder, read_settings().nights_dir):
        print(note, file=sys.stderr)
    memory = remember(store, read_night(folder).id, baselines)
    screened = screen_histories(memory, policies).values()
    is_sample = read_night_results(folder).has_sample
    environment_of = _remember_environments(store, jobs, environments)
    requests = find_reruns(screened, policies, jobs, environment_of, memory.has_commit, is_sample)
    planned = plan_confirmations(requests, policies, jobs)
    for comparison in planned:
        shutil.rmtree(folder / comparison.subfolder / comparison.job.cell, ignore_errors=True)
    _compare(planned, folder, environments)


def _remember_environments(store: Store, jobs: Sequence[Job], environments: Environments) -> EnvironmentOf:
    """The recorded environment of a cell in a night, by which it can be made again."""
    of_cell = {job.cell: job.environment for job in jobs}

    @cache
    def environment_of(cell: str, night_id: str) -> Environment | None:
        recorded = store.environment_of(cell, night_id)
        with suppress(EnvironmentFailedError):
            if recorded is not None and cell in of_cell:
                return _keep_installed(recorded, environments.get(of_cell[cell]))
        return None

    return environment_of


def _keep_installed(recorded: Environment, environment: PreparedEnvironment) -> Environment:
    """A job's record of its packages, without those that it may have made up for a re-run to install."""
    if environment.interpreter is None:
        return recorded
    names = {canonicalize_name(each.name or "") for each in distributions(path=list(environment.interpreter.path))}
    kept = {
        name: version
        for name, version in recorded.packages.items()
        if canonicalize_name(name) in names and re.fullmatch(r"\d[\w.+!]*", version)
    }
    return recorded.model_copy(update={"packages": kept})


def _conclude(
    folder: Path,
    jobs: Sequence[Job],
    environments: Environments,
    policies: Policies,
    policies_path: Path,
    baselines: Path,
    store: Store,
    matrix_path: Path,
) -> tuple[Path, int]:
    """Gates a night, asks for the line behind a red curve, and reports."""
    results = read_night_results(folder)
    command = render_confirm(folder, policies_path, baselines, matrix_path)
    verdicts = gate_night(results, policies, baselines, store, command, read_settings().nights_dir)
    causes = gather_causes(results, verdicts, store, policies_path)
    environment_of = _remember_environments(store, jobs, environments)
    with hold_folder(folder):
        is_asked = ask(results, causes, jobs, environments, environment_of, partial(has_commit, Path.cwd()))
    if is_asked:
        causes = gather_causes(results, verdicts, store, policies_path)
    contents, console = gather(results, verdicts, policies, baselines, store, causes), open_console(stderr=True)
    print_checked(contents.checked, console)
    print_verdicts(verdicts, console)
    print_causes(causes, console)
    path = write_reports(folder, contents)
    return path, find_exit_code(results, verdicts)


def _compare(comparisons: Sequence[Comparison], folder: Path, environments: Environments) -> None:
    if not comparisons:
        return
    with NightProgress(sum(2 * comparison.numbers.looks[-1] for comparison in comparisons)) as progress:

        def run(job: Job, run_folder: Path) -> Outcome:
            progress.start(job.id, f" in {job.environment}")
            outcome = run_job(job, run_folder, environments, progress.on_line)
            progress.end(outcome)
            return outcome

        for comparison in comparisons:
            run_pairs(comparison, folder, run=run, read=read_result)
