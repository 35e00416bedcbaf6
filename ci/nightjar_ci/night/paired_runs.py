"""Paired runs of two environments, until their difference is clear.

In: a comparison, and a function that runs a job into a folder. Out: the pairs, in `<night>/ab/<cell>/<pair>-<a|b>`, or
below `confirm/` for the re-runs of a suspicious history. a is the candidate environment, b the reference. The order is
A B B A A B B A: the two runs of a pair follow each other, and a drift of the machine cancels between pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import HistoryPolicy, PerformancePolicy, Policies
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.judges.performance.performance import Pair, log_ratio
from nightjar_ci.judges.performance.sequential import decide

Side = Literal["a", "b"]
RunJob = Callable[[Job, Path], Outcome]
ReadResult = Callable[[Path], RunRecord | None]


def schedule(pairs: int) -> Iterator[tuple[int, Side]]:
    """The runs in their order.

    >>> "".join(side for _, side in schedule(4))
    'abbaabba'
    """
    for pair in range(1, pairs + 1):
        first: tuple[Side, Side] = ("a", "b") if pair % 2 else ("b", "a")
        for side in first:
            yield pair, side


def jobs_to_compare(jobs: Sequence[Job], policies: Policies) -> list[tuple[Job, PerformancePolicy]]:
    """The first training job of every cell that has a performance policy."""
    firsts: dict[str, Job] = {}
    for job in jobs:
        if job.kind == "train":
            firsts.setdefault(job.cell, job)
    return [(job, policy) for cell, job in firsts.items() if (policy := policies.for_performance(cell)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two environments to compare.

    Attributes:
        job: the job of the matrix; its own environment is the candidate.
        numbers: the stopping rule: from `how`, or from the re-run history.
    """

    job: Job
    reference: str
    how: PerformancePolicy
    numbers: PerformancePolicy | HistoryPolicy
    subfolder: Literal["ab", "confirm"] = "ab"


def short_job(job: Job, environment: str, pair: int, side: Side, policy: PerformancePolicy) -> Job:
    """One run of a comparison: the job, made short by the policy's `ab_args`, in an environment."""
    return replace(
        job,
        id=f"{job.cell}-{pair}-{side}",
        command=(*job.command, *policy.ab_args),
        environment=environment,
    )


def run_pairs(comparison: Comparison, folder: Path, *, run: RunJob, read: ReadResult) -> list[Pair]:
    """Runs pairs until a look decides, the budget is spent, or a run does not complete."""
    job, how, numbers = comparison.job, comparison.how, comparison.numbers
    pairs: list[Pair] = []
    sides: dict[Side, RunRecord | None] = {}
    for number, side in schedule(numbers.looks[-1]):
        run_folder = folder / comparison.subfolder / job.cell / f"{number:02d}-{side}"
        environment = job.environment if side == "a" else comparison.reference
        outcome = run(short_job(job, environment, number, side, how), run_folder)
        sides[side] = read(run_folder) if outcome.completed else None
        if sides[side] is None:
            return [*pairs, Pair(number=number, candidate=sides.get("a"), reference=sides.get("b"))]
        if len(sides) == 2:
            pairs.append(Pair(number=number, candidate=sides["a"], reference=sides["b"]))
            sides = {}
            if number in numbers.looks and is_decided(pairs, how.sample, numbers):
                break
    return pairs


def is_decided(pairs: Sequence[Pair], sample: str, numbers: PerformancePolicy | HistoryPolicy) -> bool:
    ratios = [ratio for pair in pairs if (ratio := log_ratio(pair, sample)) is not None]
    decision = decide(ratios, numbers)
    return decision is not None and decision.status != "cannot_tell"
