"""The tests that a job ran: the `tests` of a `nightjar.run/1`, and the `tests` of a matrix job.

In: a test runner's report. Out: a validated `Suite`: one `Case` per test, with explanations of the failed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from nightjar_ci.formats.documents import StrictModel

CaseState = Literal["passed", "failed", "flaky", "skipped"]

WORST_FIRST: tuple[CaseState, ...] = ("failed", "flaky", "passed", "skipped")
MOST_NAMED = 10  # failing tests in the message of an outcome
CUT = "not run within "  # starts the skip reason of a test if the suite's time was over
SUITE = "tests_passed"  # the series of a suite's own verdict, and of the number of its passed tests
WHOLE_COMMAND = "command"  # the name of the one test of a command that writes no report


def _inside_the_folder(pattern: str) -> str:
    if PurePath(pattern).is_absolute() or ".." in PurePath(pattern).parts:
        raise ValueError(f"{pattern!r} must be inside the job's folder")
    return pattern


class KnownFailure(StrictModel):
    """A test that is known to fail."""

    test: str
    reason: Annotated[str, Field(min_length=1)]
    issue: str | None = None

    def __str__(self) -> str:
        if self.issue is None:
            return self.reason
        return f"{self.reason} ({self.issue})"

    def matches(self, name: str) -> bool:
        """Whether it matches the test, literally or as a glob: `test_op*`, but what stands in brackets is literal.

        No glob matches the command itself: a crash is not one of the tests that are known to fail.
        """
        if name == self.test:
            return True
        function, bracket, parameters = self.test.partition("[")
        return name != WHOLE_COMMAND and fnmatchcase(name, function + escape(bracket + parameters))


class SuiteOptions(StrictModel):
    """How the tests of a job are read and repeated: `tests` of a matrix job.

    Attributes:
        junit: glob of the JUnit files in the job's folder.
        reruns: number of reruns of failing tests, to find the flaky ones.
        limit_s: wall time after which pytest begins no further test; None: only the job's timeout.
    """

    junit: Annotated[str, AfterValidator(_inside_the_folder)] = "*.xml"
    reruns: Annotated[int, Field(ge=0, le=5)] = 2
    limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    known_failure: tuple[KnownFailure, ...] = ()

    def find_known(self, name: str) -> KnownFailure | None:
        return next((entry for entry in self.known_failure if entry.matches(name)), None)


class Case(StrictModel):
    """One test.

    Attributes:
        name: class and function, as the report spells them, such as `tests.test_nn.TestLinear.test_init[float32]`.
        state: how it ended; `flaky` if it failed and then passed when it was run again.
        node: pytest's argument to run only this test, if the report has it.
        message: the assertion or error, one line.
        quote: the end of the traceback and of the test's own output.
        known: the reason, if it was listed as known to fail.
    """

    name: Annotated[str, Field(min_length=1)]
    state: CaseState
    duration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    node: str | None = None
    message: str | None = None
    quote: str | None = None
    runs: int = 1
    known: str | None = None

    @property
    def cut(self) -> bool:
        """Whether it was not run because the suite's time was over."""
        return self.state == "skipped" and (self.message or "").startswith(CUT)


class Suite(StrictModel):
    """All tests of a job.

    Attributes:
        stdout_end, stderr_end: the last lines that the command printed; None if no test failed.
    """

    cases: tuple[Case, ...]
    stdout_end: str | None = None
    stderr_end: str | None = None

    def count(self, *states: CaseState) -> int:
        return sum(case.state in states for case in self.cases)

    def count_known(self) -> int:
        return sum(case.state == "failed" and case.known is not None for case in self.cases)

    def by_name(self) -> dict[str, Case]:
        return {case.name: case for case in self.cases}

    @property
    def cut(self) -> int:
        """The number of tests not run because the suite's time was over."""
        return sum(case.cut for case in self.cases)

    @property
    def skipped(self) -> int:
        return self.count("skipped") - self.cut

    @property
    def passed(self) -> int:
        return self.count("passed", "flaky")

    @property
    def ran(self) -> int:
        return len(self.cases) - self.count("skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSuite:
    """The tests of a cell in an earlier night, and their machine."""

    night: str
    machine: str
    suite: Suite


def merge_cases(cases: Iterable[Case]) -> tuple[Case, ...]:
    """One case per name: the worst state, the total time."""
    merged: dict[str, Case] = {}
    for case in cases:
        if (other := merged.get(case.name)) is not None:
            worse = min(other, case, key=lambda either: WORST_FIRST.index(either.state))
            case = worse.model_copy(update={"duration_s": other.duration_s + case.duration_s})
        merged[case.name] = case
    return tuple(merged[name] for name in sorted(merged))


def join_suites(suites: Sequence[Suite]) -> Suite:
    """The tests of several jobs of a cell as one suite."""
    if len(suites) == 1:
        return suites[0]
    ends = {
        name: "\n".join(end for suite in suites if (end := getattr(suite, name))) or None
        for name in ("stdout_end", "stderr_end")
    }
    return Suite(cases=merge_cases(case for suite in suites for case in suite.cases), **ends)


def describe_failing(suite: Suite) -> str | None:
    """The tests that fail and are not known to, one line each; None if there are none."""
    failing = [case for case in suite.cases if case.state == "failed" and case.known is None]
    if not failing:
        return None
    lines = [f"{case.name}: {case.message}" for case in failing[:MOST_NAMED]]
    if len(failing) > MOST_NAMED:
        lines.append(f"and {len(failing) - MOST_NAMED:,} more")
    return "\n  ".join([f"{describe_counts([suite])}; these fail:", *lines])


def describe_counts(suites: Sequence[Suite]) -> str:
    """The tests of some jobs for people: passed of required, and the others.

    >>> describe_counts([Suite(cases=(Case(name="a", state="passed"), Case(name="b", state="skipped")))])
    '1/1 tests passed, 1 skipped'
    """
    passed, known = sum(suite.passed for suite in suites), sum(suite.count_known() for suite in suites)
    parts = [f"{passed:,}/{sum(suite.ran for suite in suites) - known:,} tests passed"]
    numbers = {
        "known to fail": known,
        "flaky": sum(suite.count("flaky") for suite in suites),
        "skipped": sum(suite.skipped for suite in suites),
        "not run within the time limit": sum(suite.cut for suite in suites),
    }
    parts += [f"{number:,} {state}" for state, number in numbers.items() if number]
    return ", ".join(parts)
