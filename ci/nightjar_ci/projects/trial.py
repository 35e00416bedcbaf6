"""A trial: the tests of a project in two environments, and their differences.

In: the jobs of a matrix and two environments. Out: a `Trial`: the test results of each side, the tests that pass on
one side only, and the packages that differ. The sides run at the same time, so their times are not compared. A test
that failed and then passed counts as passed. A module that fails at import takes its tests with it, and so does a
command that ends before its tests: it is one difference, which counts the tests of the other side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import NightResults, read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.suite import WHOLE_COMMAND, Case, Suite, SuiteOptions, describe_counts
from nightjar_ci.night.matrix import Matrix, expand
from nightjar_ci.night.run import run_night
from nightjar_ci.projects.removed import Removal, find_missed_name, find_missing_module, find_removal
from nightjar_ci.suites.command import find_pytest
from nightjar_ci.web.package_index import File

FIRST_ANSWER_S = 600.0  # a first answer comes while the user still watches
BEFORE, AFTER = "before", "after"
_FAILED = "failed"
_PASSED = ("passed", "flaky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The test results of one side.

    Attributes:
        counts: number of passed tests, for people; None if a job did not complete.
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
    """A test whose result differs after the change, or a module that fails before its tests.

    Attributes:
        node: pytest's argument to run only this test, or this module.
        n_tests: number of passing tests that a module, or a command, took along; None for a test.
    """

    test: str
    message: str
    node: str | None
    job: str
    n_tests: int | None = None

    @property
    def error(self) -> str:
        """The first line of the message without paths and addresses, the same in all tests that one cause breaks."""
        return re.sub(r"\s*\((?:/|unknown location)[^()]*\)| at 0x[0-9a-f]+", "", self.message.partition("\n")[0])

    @property
    def is_module(self) -> bool:
        """Whether it failed before its tests; of a module that fails on both sides, only the error shows it."""
        return self.n_tests is not None or (
            self.node is None and self.message.startswith(("ImportError", "ModuleNotFoundError"))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The findings of a trial.

    Attributes:
        broken: tests that pass before and fail after.
        mended: tests that fail before and pass after.
        failing: tests that fail on both sides.
        untimed: tests that fail after and had no time before: whether they broke is unknown.
        absent: names of tests that only one side has.
        n_compared: number of tests that ran on both sides.
        removed: error of some failures to the name that JAX removed.
    """

    folder: Path
    before: Side
    after: Side
    broken: tuple[Difference, ...] = ()
    mended: tuple[Difference, ...] = ()
    failing: tuple[Difference, ...] = ()
    untimed: tuple[Difference, ...] = ()
    absent: tuple[str, ...] = ()
    n_compared: int = 0
    removed: Mapping[str, Removal] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.before, self.after)

    @property
    def packages(self) -> list[tuple[str, str | None, str | None]]:
        """The packages with another version: name, before, after; None if one side lacks it."""
        before, after = self.before.packages, self.after.packages
        if not before or not after:
            return []
        names = sorted({*before, *after}, key=str.lower)
        return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def plan_trial(matrix: Matrix, before: str, after: str) -> tuple[Matrix, tuple[Job, ...]]:
    """The test jobs of a matrix, each in both environments; their ids end with the name of the side."""
    sides = {BEFORE: before, AFTER: after}
    entries = [entry for entry in matrix.job if entry.find_kind(matrix.defaults) == "test"]
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
        if entry.find_kind(matrix.defaults) == "test" and (entry.tests or find_pytest(entry.command) is not None):
            options = entry.tests or SuiteOptions()
            options = options.model_copy(update={"limit_s": limit_s or options.limit_s or FIRST_ANSWER_S})
            entry = entry.model_copy(update={"tests": options})
        entries.append(entry)
    return matrix.model_copy(update={"job": tuple(entries)})


def run_trial(matrix: Matrix, jobs: Sequence[Job], folder: Path, environments: Environments, workers: int) -> Trial:
    run_night(matrix, folder, jobs=jobs, environments=environments, workers=workers)
    return compare_sides(read_night_results(folder))


def compare_sides(results: NightResults) -> Trial:
    suites: dict[str, dict[str, Suite]] = {BEFORE: {}, AFTER: {}}
    outcomes: dict[str, list[Outcome]] = {BEFORE: [], AFTER: []}
    packages: dict[str, dict[str, str]] = {BEFORE: {}, AFTER: {}}
    for outcome, record in results:
        cell, _, side = outcome.cell.rpartition("-")
        job = outcome.job.replace(outcome.cell, cell, 1)
        outcomes[side].append(outcome)
        if record is not None and record.tests is not None and outcome.completed:
            suites[side][job] = record.tests
            packages[side].update(record.environment.packages)
    sides = {side: _describe(ended, suites[side], packages[side]) for side, ended in outcomes.items()}
    return compare_suites(sides, suites, results.folder)


def compare_suites(sides: Mapping[str, Side], suites: Mapping[str, Mapping[str, Suite]], folder: Path) -> Trial:
    """The differences between the suites of two sides, by job."""
    kinds: dict[str, list[Difference]] = {kind: [] for kind in ("broken", "mended", "failing", "untimed", "absent")}
    n_compared = 0
    for job, suite in suites[AFTER].items():
        for pair in pair_cases(suites[BEFORE].get(job), suite):
            n_compared += pair.n_compared
            kind = pair.find_kind(alone=job not in suites[BEFORE])
            if kind is not None:
                kinds[kind].append(pair.explain(job))
    return Trial(
        folder=folder,
        before=sides[BEFORE],
        after=sides[AFTER],
        broken=tuple(kinds["broken"]),
        mended=tuple(kinds["mended"]),
        failing=tuple(kinds["failing"]),
        untimed=tuple(kinds["untimed"]),
        absent=tuple(difference.test for difference in kinds["absent"]),
        n_compared=n_compared,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The results of a test on both sides.

    Attributes:
        tests: of the other side, if this is a module, or a command, that failed on one side before its tests.
    """

    before: Case | None
    after: Case | None
    tests: tuple[Case, ...] = ()

    @property
    def n_compared(self) -> int:
        """The number of tests that ran on both sides."""
        cases = self.tests or (self.before, self.after)
        ran = [case is not None and case.state != "skipped" for case in cases]
        if self.tests:
            return sum(ran)
        return int(all(ran))

    def find_kind(self, *, alone: bool) -> str | None:
        """The list of the trial that it belongs to; None if it does not differ."""
        before, after = self.before, self.after
        if self.tests:
            if any(test.state in _PASSED for test in self.tests):
                return "mended" if after is None else "broken"
            if any(test.state == _FAILED for test in self.tests):
                return "failing"
            if after is None:
                return None
            return "untimed" if any(test.cut for test in self.tests) else "broken"
        if after is None or (before is None and not alone):
            return "absent"
        if after.state == _FAILED:
            if before is None or before.state == _FAILED:
                return "failing"
            return "untimed" if before.cut else "broken"
        if before is not None and before.state == _FAILED and after.state != "skipped":
            return "mended"
        if before is not None and before.state in _PASSED and after.state == "skipped" and not after.cut:
            return "absent"
        return None

    def explain(self, job: str) -> Difference:
        """The failing side in words."""
        case = next(case for case in (self.after, self.before) if case is not None)
        if case.state != _FAILED and self.before is not None:
            case = self.before
        node, n_tests = case.node, None
        if node is None and "in <module>" in (case.quote or ""):  # pytest's traceback of a file that it cannot import
            n_tests = 0
        if self.tests:
            n_tests = sum(test.state in _PASSED for test in self.tests)
            if case.name != WHOLE_COMMAND:
                node = node or (self.tests[0].node or "").partition("::")[0] or None
        return Difference(test=case.name, message=case.message or "failed", node=node, job=job, n_tests=n_tests)


def pair_cases(before: Suite | None, after: Suite) -> Iterator[Pair]:
    """The tests of two sides, by name; a failed module, or command, with the tests that only the other side has."""
    old, new = {} if before is None else before.by_name(), after.by_name()
    paired: set[str] = set()
    for own, other in ((new, old), (old, new)):
        for name, case in own.items():
            if case.state != _FAILED or name in other:
                continue
            tests = tuple(
                test
                for test in other.values()
                if test.name not in own and (name == WHOLE_COMMAND or test.name.startswith(f"{name}."))
            )
            if tests:
                paired |= {name, *(test.name for test in tests)}
                yield Pair(before=old.get(name), after=new.get(name), tests=tests)
    for name in {**new, **old}:
        if name not in paired:
            yield Pair(before=old.get(name), after=new.get(name))


def explain_removals(trial: Trial, files: Sequence[File]) -> Trial:
    """The trial with the names that JAX removed and its failures miss."""
    removed: dict[str, Removal] = {}
    for difference in (*trial.broken, *trial.failing, *trial.untimed):
        missed = find_missed_name(difference.error)
        if missed is None or trial.after.jax is None or difference.error in removed:
            continue
        if (removal := find_removal(*missed, files, trial.after.jax)) is not None:
            removed[difference.error] = removal
    return replace(trial, removed=removed)


def find_earlier_jax(trial: Trial, releases: Sequence[str], step: int) -> str | None:
    """An earlier release to compare with, if the first side tells nothing; else None.

    It is the last one with all the removed names that tests miss on both sides, or some steps back if no test passes.
    """
    before = trial.before
    if trial.failing and all(find_missing_module(difference.message) for difference in trial.failing):
        return None  # no JAX brings them
    lost = {removal.last for difference in trial.failing if (removal := trial.removed.get(difference.error))}
    last = min(lost, key=Version, default=None)
    if before.jax not in releases or before.counts is None:
        return None
    index = releases.index(before.jax)
    if last in releases[:index]:
        return last
    return releases[max(0, index - step)] if index and not before.n_passed else None


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
