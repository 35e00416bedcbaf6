"""The runs that make the baselines of a matrix, and their results.

In: a matrix, policies and seeds. Out: the jobs to run. From their night folder: the results by cell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from nightjar_ci.baselines.baseline import LEAST_SEEDS, ConvergenceBaseline
from nightjar_ci.errors import InputError
from nightjar_ci.formats.globs import matches
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.curve_faults import find_faults
from nightjar_ci.night.matrix import Matrix, expand, parse_seeds, with_seeds

# Replicas that start one rounding apart differ by at most 3e-6 at the first step, in bfloat16 too; replicas with other
# dropout masks by 3e-3 or more.
FIRST_STEP = 1e-4
_REPLICA = "-replica"  # suffix of the id of a job that runs with `replica_args`


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRuns:
    """The training runs of one cell.

    Attributes:
        command: of its first job, with `{out}` for its folder.
        records: results of the jobs that completed.
        replicas: the same for the repeated jobs, equal up to rounding.
        failed: ids of the others.
    """

    cell: str
    command: tuple[str, ...]
    records: tuple[RunRecord, ...]
    replicas: tuple[RunRecord, ...]
    failed: tuple[str, ...]


def plan_runs(
    matrix: Matrix, policies: Policies, pattern: str | None, seeds: str, *, facts_only: bool
) -> tuple[Job, ...]:
    """The jobs to run: each training cell with all seeds, or with the first if only its facts are wanted.

    If a convergence policy has `replica_args`, each seed runs once more with them.
    """
    numbers = parse_seeds(seeds)
    jobs = [job for job in expand(with_seeds(matrix, numbers)) if job.kind == "train"]
    jobs = [job for job in jobs if pattern is None or matches(job.id, pattern) or matches(job.cell, pattern)]
    if not jobs:
        raise InputError(f"{matrix.name}: no training job matches {pattern!r}.")
    curves = [job for job in jobs if not facts_only and not _is_equal_to_another(job.cell, policies)]
    if curves and len(numbers) < LEAST_SEEDS:
        hint = "an envelope needs ten: --seeds 0:10, or --facts-only for the compile facts alone"
        raise InputError(f"--seeds {seeds}: {len(numbers)} seeds, expected at least {LEAST_SEEDS}.", hint)
    firsts: dict[str, Job] = {}
    for job in jobs:
        firsts.setdefault(job.cell, job)
    chosen = [job for job in jobs if job in curves or firsts[job.cell] is job]
    with_replicas = {job.id: _replica(job, policies) for job in curves}
    return tuple(run for job in chosen for run in (job, *with_replicas.get(job.id, ())))


def _replica(job: Job, policies: Policies) -> tuple[Job, ...]:
    """The repeated job, equal up to rounding, if a policy has its arguments."""
    entries = (entry for entry in policies.convergence if matches(job.cell, entry.jobs) and entry.replica_args)
    return tuple(
        replace(job, id=job.id + _REPLICA, command=(*job.command, *entry.replica_args)) for entry in islice(entries, 1)
    )


def needs_curves(cell: CellRuns, policies: Policies) -> bool:
    return bool(cell.records and cell.records[0].curves) and not _is_equal_to_another(cell.cell, policies)


def find_fault(cell: CellRuns, judged: Collection[str]) -> str | None:
    """The fault of a judged curve of a cell, such as NaN, in words; None if there is none."""
    for record in (*cell.records, *cell.replicas):
        for curve in record.curves:
            if curve.name not in judged:
                continue
            for finding in find_faults(record, curve.name, curve.steps):
                return finding.explanation.removesuffix(".")
        curves = [curve for curve in record.curves if curve.name in judged]
        if curves and len(cell.records) > 1 and all(other.curves == record.curves for other in cell.records):
            return "all seeds have the same curves (pass it {seed} in the matrix, or let it read NIGHTJAR_SEED)"
    return None


def find_replica_fault(cell: CellRuns, policies: Policies) -> str | None:
    """The replica whose first step differs by more than rounding, in words; None if there is none.

    Such a replica draws other random numbers, and a limit made from it would pass any smaller fault.
    """
    seeds = {record.seed: record for record in cell.records}
    for replica in cell.replicas:
        for curve in replica.curves:
            policy = policies.for_curve(cell.cell, curve.name)
            first = seeds[replica.seed].curve(curve.name) if replica.seed in seeds else None
            if policy is None or policy.scale != "log" or first is None or len(curve.steps) < 2 or not first.values[0]:
                continue
            change = abs(curve.values[0] / first.values[0] - 1)
            if change > FIRST_STEP:
                text = (
                    f"the {curve.name} of seed {replica.seed} and of its replica differ by {change:.1g} at the first "
                )
                return f"{text}step, which is not rounding"
    return None


def judge_addition(cell: CellRuns, baseline: ConvergenceBaseline, policies: Policies) -> str | None:
    """Why a cell's runs do not match its baseline's except in environment; None if they do."""
    for expected in baseline.curves:
        policy = policies.for_curve(cell.cell, expected.name)
        if policy is not None and policy.same_as is None:
            verdict = judge_convergence(cell.cell, expected.name, cell.records, baseline, policy)
            if verdict.status != "ok":
                return verdict.explanation.removesuffix(".")
    return None


def read_cells(folder: Path, pattern: str | None = None) -> list[CellRuns]:
    return gather_cells(read_night_results(folder), pattern)


def gather_cells(results: Iterable[tuple[Outcome, RunRecord | None]], pattern: str | None = None) -> list[CellRuns]:
    """The training runs among outcomes with their results, by cell."""
    cells: dict[str, list[tuple[str, tuple[str, ...], RunRecord | None]]] = {}  # job, command, result
    for outcome, record in results:
        chosen = pattern is None or matches(outcome.job, pattern) or matches(outcome.cell, pattern)
        if outcome.kind == "train" and chosen:
            command = _without_folder(outcome.command, outcome.job)
            if not outcome.completed:
                record = None
            cells.setdefault(outcome.cell, []).append((outcome.job, command, record))
    return [
        CellRuns(
            cell=cell,
            command=next((command for job, command, _ in runs if not job.endswith(_REPLICA)), runs[0][1]),
            records=tuple(r for job, _, r in runs if r is not None and not job.endswith(_REPLICA)),
            replicas=tuple(r for job, _, r in runs if r is not None and job.endswith(_REPLICA)),
            failed=tuple(job for job, _, record in runs if record is None),
        )
        for cell, runs in cells.items()
    ]


def _is_equal_to_another(cell: str, policies: Policies) -> bool:
    return any(matches(cell, entry.jobs) and entry.same_as is not None for entry in policies.convergence)


def _without_folder(command: Sequence[str], job: str) -> tuple[str, ...]:
    """The command without the machine's path to the job's folder.

    >>> _without_folder(("train", "--out=/home/me/nights/1/jobs/gpt-s0/train"), "gpt-s0")
    ('train', '--out={out}/train')
    """
    folder = re.compile(rf"[^=]*/jobs/{re.escape(job)}(?=/|$)")
    return tuple(folder.sub("{out}", part) for part in command)
