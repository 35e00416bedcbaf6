"""A budget of skipped tests: how many a whole machine may skip, by reason, is stated in tests/skips.toml.

In: the reasons that pytest reports. Out: a line for each reason over its budget. With `--whole-machine`, which
`.ci/run` gives, such a line fails the run: a test that nobody runs is noticed when it stops running.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

BUDGET = Path(__file__).with_name("skips.toml")


def read_budget(path: Path = BUDGET) -> dict[str, int]:
    """The largest number of skips by pattern of the reason, in which `*` stands for any text."""
    budget: dict[str, int] = tomllib.loads(path.read_text())["at_most"]
    return budget


def count_skips(reasons: Iterable[str], budget: Mapping[str, int]) -> Counter[str]:
    """The number of skips by the first pattern that their reason matches; by the reason itself where none does."""
    return Counter(next((p for p in budget if fnmatchcase(reason, p)), reason) for reason in reasons)


def find_excess(reasons: Iterable[str], budget: Mapping[str, int]) -> list[str]:
    """A line for each reason for which more tests are skipped than the budget admits.

    >>> find_excess(["no gpu: none", "no gpu: none", "too old"], {"no gpu: *": 1})
    ["2 tests are skipped for 'no gpu: *', expected at most 1", "1 tests are skipped for 'too old', expected at most 0"]
    """
    return [
        f"{count} tests are skipped for {reason!r}, expected at most {budget.get(reason, 0)}"
        for reason, count in count_skips(reasons, budget).items()
        if count > budget.get(reason, 0)
    ]


class SkipBudget:
    """The plugin: collects the reasons, and fails a run that is over its budget."""

    def __init__(self, budget: Mapping[str, int]) -> None:
        self.budget = budget
        self.reasons: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons.append(report.longrepr[2].removeprefix("Skipped: "))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons.append(report.longrepr[2].removeprefix("Skipped: "))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and find_excess(self.reasons, self.budget):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in find_excess(self.reasons, self.budget):
            terminalreporter.write_line(f"error: {line}. Hint: run them, or raise the number in tests/{BUDGET.name}")
