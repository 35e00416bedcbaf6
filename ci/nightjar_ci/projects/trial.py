"""A trial: the tests of a project in two environments, and their differences.

In: the jobs of a matrix and two environments. Out: a `Trial`: the test results of each side, the tests that pass on
one side only, and the packages that differ. The sides run at the same time, so their times are not compared. A test
that failed and then passed counts as passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import NightResults, read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.suite import Case, Suite, SuiteOptions, describe_counts
from nightjar_ci.night.matrix import Matrix, expand
from nightjar_ci.night.run import run_night

FIRST_ANSWER_S = 600.0  # a first answer comes while the user still watches
BEFORE, AFTER = "before", "after"
_FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The test results of one side.

    Attributes:
        environment: as written in a matrix.
        jax: version of JAX, if the environment has one.
        counts: number of passed tests, for people; None if a job did not complete.
        n_passed: number of passed tests.
        duration_s: of all jobs.
        packages: name to version.
        failure: why a job did not complete.
    """

    environment: str
    jax: str | None
    counts: str | None
    n_passed: int
    duration_s: float
    packages: Mapping[str, str] = field(repr=False)
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A test whose result differs after the change.

    Attributes:
        test: its name.
        message: of its failure.
        node: pytest's argument to run only this test.
        job: id of the job in the matrix.
    """

    test: str
    message: str
    node: str | None
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The findings of a trial.

    Attributes:
        folder: of its logs.
        before: the first side; None if there was nothing to compare with.
        after: the second side.
        broken: tests that pass before and fail after.
        mended: tests that fail before and pass after.
        failing: tests that fail on both sides, or after if there is no side before.
        untimed: tests that fail after and had no time before: whether they broke is unknown.
        absent: names of tests that only one side has.
        n_compared: number of tests that ran on both sides.
        packages: packages with another version: name, before, after; None if one side lacks it.
    """

    folder: Path
    before: Side | None
    after: Side
    broken: tuple[Difference, ...] = ()
    mended: tuple[Difference, ...] = ()
    failing: tuple[Difference, ...] = ()
    untimed: tuple[Difference, ...] = ()
    absent: tuple[str, ...] = ()
    n_compared: int = 0
    packages: tuple[tuple[str, str | None, str | None], ...] = ()

    @property
    def sides(self) -> tuple[Side, ...]:
        if self.before is None:
            return (self.after,)
        return (self.before, self.after)


def plan_trial(matrix: Matrix, before: str | None, after: str) -> tuple[Matrix, tuple[Job, ...]]:
    """The test jobs of a matrix, each in both environments; their ids end with the name of the side."""
    sides = {AFTER: after} if before is None else {BEFORE: before, AFTER: after}
    entries = [entry for entry in matrix.job if (entry.kind or matrix.defaults.kind) == "test"]
    paired = matrix.model_copy(
        update={
            "job": tuple(
                entry.model_copy(update={"name": f"{entry.name}-{side}", "environment": environment})
                for entry in entries
                for side, environment in sides.items()
            )
        }
    )
    return paired, expand(paired)


def with_time_limit(matrix: Matrix, limit_s: float | None) -> Matrix:
    """The matrix with a time limit for its tests.

    Args:
        limit_s: for all of them; None: tests without a limit get `FIRST_ANSWER_S`.
    """
    entries = []
    for entry in matrix.job:
        if (entry.kind or matrix.defaults.kind) == "test":
            options = entry.tests or SuiteOptions()
            options = options.model_copy(update={"limit_s": limit_s or options.limit_s or FIRST_ANSWER_S})
            entry = entry.model_copy(update={"tests": options})
        entries.append(entry)
    return matrix.model_copy(update={"job": tuple(entries)})


def run_trial(matrix: Matrix, jobs: Sequence[Job], folder: Path, environments: Environments, workers: int) -> Trial:
    """Runs the jobs of `plan_trial`, and compares the sides."""
    run_night(matrix, folder, jobs=jobs, environments=environments, workers=workers)
    return compare_sides(read_night_results(folder))


def compare_sides(results: NightResults) -> Trial:
    """The differences between the sides of a night."""
    suites: dict[str, dict[str, Suite]] = {BEFORE: {}, AFTER: {}}
    outcomes: dict[str, list[Outcome]] = {BEFORE: [], AFTER: []}
    packages: dict[str, dict[str, str]] = {BEFORE: {}, AFTER: {}}
    for outcome, record in results:
        job, _, side = outcome.job.rpartition("-")
        outcomes[side].append(outcome)
        if record is not None and record.tests is not None and outcome.completed:
            suites[side][job] = record.tests
            packages[side].update(record.environment.packages)
    sides = {side: _describe(ended, suites[side], packages[side]) for side, ended in outcomes.items() if ended}
    broken, mended, failing, untimed, absent = [], [], [], [], []
    n_compared = 0
    for job, suite in suites[AFTER].items():
        earlier = suites[BEFORE].get(job)
        old = None if earlier is None else earlier.by_name()
        for name, case in suite.by_name().items():
            past = None if old is None else old.get(name)
            n_compared += past is not None and "skipped" not in (past.state, case.state)
            if old is not None and past is None:
                absent.append(name)
            elif case.state == _FAILED and (past is None or past.state == _FAILED):
                failing.append(_explain(case, job))
            elif case.state == _FAILED and past is not None and past.cut:
                untimed.append(_explain(case, job))
            elif case.state == _FAILED:
                broken.append(_explain(case, job))
            elif past is not None and past.state == _FAILED and case.state != "skipped":
                mended.append(_explain(past, job))
        absent += sorted(set(old or ()) - suite.by_name().keys())
    return Trial(
        folder=results.folder,
        before=sides.get(BEFORE),
        after=sides[AFTER],
        broken=tuple(broken),
        mended=tuple(mended),
        failing=tuple(failing),
        untimed=tuple(untimed),
        absent=tuple(absent),
        n_compared=n_compared,
        packages=tuple(_find_changes(packages)),
    )


def _describe(outcomes: Sequence[Outcome], suites: Mapping[str, Suite], packages: Mapping[str, str]) -> Side:
    incomplete = [outcome for outcome in outcomes if not outcome.completed]
    return Side(
        environment=outcomes[0].environment,
        jax=next((outcome.jax for outcome in outcomes if outcome.jax is not None), None),
        counts=None if incomplete else describe_counts(list(suites.values())),
        n_passed=sum(suite.passed for suite in suites.values()),
        duration_s=sum(outcome.duration_s for outcome in outcomes),
        packages=packages,
        failure=incomplete[0].message if incomplete else None,
    )


def _explain(case: Case, job: str) -> Difference:
    return Difference(test=case.name, message=case.message or "failed", node=case.node, job=job)


def _find_changes(packages: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str | None, str | None]]:
    before, after = packages[BEFORE], packages[AFTER]
    if not before or not after:
        return []
    names = sorted({*before, *after}, key=str.lower)
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
