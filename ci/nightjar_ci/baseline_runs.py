"""Which runs make the baselines of a matrix, and what did they leave?

In: a matrix, policies, seeds. Out: the jobs to run; and, from the night folder that they left, the results by cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from nightjar_ci.baselines import LEAST_SEEDS
from nightjar_ci.errors import InputError
from nightjar_ci.job import Job
from nightjar_ci.matrix import Matrix, expand, with_seeds
from nightjar_ci.night import job_folder, read_results
from nightjar_ci.policy import Policies
from nightjar_ci.record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRuns:
    """The training runs of one cell.

    Attributes:
        command: of its first job, with `{out}` for its folder.
        records: results of the jobs that completed.
        failed: ids of the others.
    """

    cell: str
    command: tuple[str, ...]
    records: tuple[RunRecord, ...]
    failed: tuple[str, ...]


def parse_seeds(text: str) -> range:
    """Seeds as `first:end`, without the end.

    >>> parse_seeds("0:10")
    range(0, 10)
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise InputError(f"--seeds {text}: expected two increasing numbers such as 0:10.")
    return range(int(found[1]), int(found[2]))


def plan_runs(
    matrix: Matrix, policies: Policies, pattern: str | None, seeds: str, *, facts_only: bool
) -> tuple[Job, ...]:
    """The jobs to run: each training cell with all seeds, or with the first where only its facts are wanted.

    Raises:
        InputError: no job matches, or too few seeds for an envelope.
    """
    wanted = parse_seeds(seeds)
    jobs = [job for job in expand(with_seeds(matrix, wanted)) if job.kind == "train"]
    jobs = [job for job in jobs if pattern is None or fnmatchcase(job.id, pattern) or fnmatchcase(job.cell, pattern)]
    if not jobs:
        raise InputError(f"{matrix.name}: no training job matches {pattern!r}.")
    curves = [job for job in jobs if not facts_only and not _is_equal_to_another(job.cell, policies)]
    if curves and len(wanted) < LEAST_SEEDS:
        hint = "an envelope needs ten: --seeds 0:10, or --facts-only for the compile facts alone"
        raise InputError(f"--seeds {seeds}: {len(wanted)} seeds, expected at least {LEAST_SEEDS}.", hint)
    firsts: dict[str, Job] = {}
    for job in jobs:
        firsts.setdefault(job.cell, job)
    return tuple(job for job in jobs if job in curves or firsts[job.cell] is job)


def needs_curves(cell: CellRuns, policies: Policies) -> bool:
    """Whether a cell's curves are judged against a baseline."""
    return bool(cell.records and cell.records[0].curves) and not _is_equal_to_another(cell.cell, policies)


def read_cells(folder: Path, pattern: str | None = None) -> list[CellRuns]:
    """The training runs of a night folder by cell.

    Raises:
        InputError: `night.json` cannot be read.
    """
    cells: dict[str, list[tuple[str, tuple[str, ...], RunRecord | None]]] = {}
    for outcome, record in read_results(folder):
        matches = pattern is None or fnmatchcase(outcome.job, pattern) or fnmatchcase(outcome.cell, pattern)
        if outcome.kind == "train" and matches:
            command = _without_folder(outcome.command, job_folder(folder, outcome.job))
            cells.setdefault(outcome.cell, []).append((outcome.job, command, record if outcome.completed else None))
    return [
        CellRuns(
            cell=cell,
            command=runs[0][1],
            records=tuple(record for _, _, record in runs if record is not None),
            failed=tuple(job for job, _, record in runs if record is None),
        )
        for cell, runs in cells.items()
    ]


def _is_equal_to_another(cell: str, policies: Policies) -> bool:
    return any(fnmatchcase(cell, entry.jobs) and entry.same_as is not None for entry in policies.convergence)


def _without_folder(command: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The command without the machine's paths."""
    paths = (str(folder.resolve()), str(folder))
    return tuple(next((part.replace(path, "{out}") for path in paths if path in part), part) for part in command)
