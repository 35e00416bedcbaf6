"""Judge of a test suite: which tests fail, since when, which are flaky, which vanished, which became slower.

In: the tests of a cell tonight and in earlier nights. Out: a verdict for each test that a person should read, and one
for the suite. No test is judged by chance: a test that fails each time it is run is red, and one that fails once and
then passes is on watch. A known failure is not red until it passes. A file that cannot
be imported is one failing test: it was good in the nights in which its own tests ran, and those have not vanished.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from statistics import median

from pydantic import JsonValue

from nightjar_ci.formats.policy import SuitePolicy
from nightjar_ci.formats.suite import WHOLE_COMMAND, Case, PastSuite, Suite, describe_counts
from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.finding import count

SUITE = "tests_passed"  # the series of a suite's own verdict
MOST_NAMED = 20  # tests with their own verdict, of each kind
_MOST_LINES = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """The tests of a cell tonight.

    Attributes:
        machine: their machine; times of different machines are not compared.
    """

    cell: str
    jobs: tuple[str, ...]
    machine: str
    suite: Suite


def judge_suite(tonight: Tonight, history: Sequence[PastSuite], policy: SuitePolicy) -> list[Verdict]:
    judge = _Judge(tonight, history[-policy.nights :], policy)
    failing = [case for case in tonight.suite.cases if case.state == "failed" and case.known is None]
    return [
        *map(judge.explain_failure, failing[:MOST_NAMED]),
        *judge.find_fixed(),
        *judge.find_flaky(),
        *judge.find_slower(),
        judge.judge_whole(failing),
    ]


class _Judge:
    """The tests of a cell with their history."""

    def __init__(self, tonight: Tonight, history: Sequence[PastSuite], policy: SuitePolicy) -> None:
        self._tonight, self._history, self._policy = tonight, history, policy
        self._past = [(past, past.suite.by_name()) for past in history]
        self._files = {past.night: _find_files(cases) for past, cases in self._past}

    def explain_failure(self, case: Case) -> Verdict:
        """The night since which a test fails, and its assertion."""
        before = list(self._of(case.name))
        last_good = next((night for night, past in reversed(before) if past.state in ("passed", "flaky")), None)
        since = [night for night, past in before if past.state == "failed" and (last_good is None or night > last_good)]
        runs = f" in each of {case.runs} runs" if case.runs > 1 else ""
        again = f", tonight{runs}" if runs else ""
        if last_good is not None and not since and self._is_file_of_tests(case.name, last_good):
            text = f"fails tonight{runs}, and its tests ran in night {last_good}"
        elif last_good is not None and not since:
            text = f"fails tonight{runs}, and passed in night {last_good}"
        elif last_good is not None:
            text = f"fails since night {since[0]}{again}, and passed in night {last_good}"
        elif since:
            text = f"fails since night {since[0]}{again}, and no earlier night saw it pass"
        elif self._history:
            text = f"fails{runs}, and is new or did not run before"
        else:
            text = f"fails{runs}, in the first night of its suite"
        numbers: dict[str, JsonValue] = {"good_night": last_good, "since": since[0] if since else None}
        return self._verdict(case, "regressed", f"{text}: {case.message}", policy=numbers)

    def find_fixed(self) -> Iterator[Verdict]:
        fixed = []
        for case in self._tonight.suite.cases:
            if case.state != "passed":
                continue
            before = [past.state for _, past in self._of(case.name) if past.state != "skipped"]
            if case.known is not None:
                fixed.append((case, f"is listed as a known failure, and passes: remove its entry ({case.known})"))
            elif before and before[-1] == "failed":
                fixed.append((case, "passes again"))
        yield from (self._verdict(case, "improved", text) for case, text in fixed[:MOST_NAMED])

    def find_flaky(self) -> Iterator[Verdict]:
        flaky = [case for case in self._tonight.suite.cases if case.state == "flaky" and case.known is None]
        for case in flaky[:MOST_NAMED]:
            before = [past.state for _, past in self._of(case.name)]
            often = f"as in {before.count('flaky')} of {count(len(before), 'earlier night')}"
            if "flaky" not in before:
                often = "for the first time"
            text = f"is flaky, {often}: it failed, and passed when it was run again: {case.message}"
            yield self._verdict(case, "ok", text, watch=True)

    def find_slower(self) -> Iterator[Verdict]:
        """The tests that took far longer than in any of the compared nights of this machine."""
        slower = []
        for case in self._tonight.suite.cases:
            times = [past.duration_s for past in self._times(case)]
            if len(times) < self._policy.min_nights:
                continue
            longest, usual = max(times), median(times)
            if case.duration_s > self._policy.slower * longest and case.duration_s - longest > self._policy.slower_s:
                text = f"took {case.duration_s:.3g} s: at most {longest:.3g} s in {count(len(times), 'earlier night')}"
                change = 0.0
                if usual:
                    change = case.duration_s / usual - 1
                slower.append((change, case, text))
        for change, case, text in sorted(slower, key=lambda entry: -entry[0])[:MOST_NAMED]:
            effect = Effect(value=change, unit="relative change of its median time") if change else None
            yield self._verdict(case, "ok", text, effect=effect, watch=True)

    def judge_whole(self, failing: Sequence[Case]) -> Verdict:
        """The suite: the number of passed tests, and whether as many ran as in earlier nights."""
        suite = self._tonight.suite
        vanished = self._find_vanished()
        parts = [describe_counts([suite])]
        status: Status = "ok"
        details: list[str] = []
        if len(failing) > MOST_NAMED:
            status = "regressed"
            parts.append(f"{len(failing):,} tests fail, {MOST_NAMED} of them with a verdict of their own")
        elif failing:
            others = Suite(cases=tuple(case for case in suite.cases if case not in failing))
            parts = [f"{count(len(failing), 'failing test')} judged one by one"]
            if others.cases:
                parts.append(f"the others: {describe_counts([others])}")
        if vanished:
            parts.append(f"{count(len(vanished), 'test')} vanished since night {self._history[-1].night}")
            details += [f"vanished: {name}" for name in vanished[:MOST_NAMED]]
        usual = median(past.suite.ran + past.suite.cut for past in self._history) if self._history else 0.0
        expected = suite.ran + suite.cut + self._count_not_imported(failing)
        if status == "ok" and expected < (1 - self._policy.vanished) * usual:
            status = "cannot_tell"
            parts.append(f"{usual:,.0f} ran in the usual night: are they skipped, or no longer collected?")
        if failing:
            for name, end in (("stdout", suite.stdout_end), ("stderr", suite.stderr_end)):
                if end:
                    details += [f"-- the end of {name}:", *end.splitlines()]
        return Verdict(
            series=f"{self._tonight.cell}/{SUITE}",
            judge="tests",
            status=status,
            n=len(self._history),
            policy={**self._policy.numbers(), "good_night": self._last_without_failure(), "node": None},
            runs=self._tonight.jobs,
            explanation="; ".join(parts) + ".",
            details=tuple(details),
            watch=status == "ok" and bool(vanished),
        )

    def _find_vanished(self) -> list[str]:
        """The tests of the latest earlier night that tonight lacks; a failed command's stand-in is not a test."""
        if not self._past:
            return []
        tonight = self._tonight.suite.by_name()
        files = _find_files(tonight)
        failing = {name for name, case in tonight.items() if case.state == "failed"}
        return sorted(
            name
            for name in self._past[-1][1]
            if name not in tonight and name != WHOLE_COMMAND and name not in files and not _is_in(name, failing)
        )

    def _count_not_imported(self, failing: Sequence[Case]) -> int:
        """The number of the latest earlier night's tests in files that cannot be imported tonight."""
        if not self._past:
            return 0
        names = {case.name for case in failing}
        return sum(_is_in(name, names) for name in self._past[-1][1])

    def _is_file_of_tests(self, name: str, night: str) -> bool:
        return any(past.night == night and name not in cases for past, cases in self._past)

    def _last_without_failure(self) -> str | None:
        for past in reversed(self._history):
            if not any(case.state == "failed" and case.known is None for case in past.suite.cases):
                return past.night
        return None

    def _of(self, name: str) -> Iterator[tuple[str, Case]]:
        """A test's cases in earlier nights, oldest first; a file is good in the nights that have its tests."""
        for past, cases in self._past:
            if name in cases:
                yield past.night, cases[name]
            elif name in self._files[past.night]:
                yield past.night, Case(name=name, state="passed")

    def _times(self, case: Case) -> Iterator[Case]:
        for past, cases in self._past:
            before = cases.get(case.name)
            if before is not None and before.state == case.state == "passed" and past.machine == self._tonight.machine:
                yield before

    def _verdict(
        self,
        case: Case,
        status: Status,
        text: str,
        *,
        policy: dict[str, JsonValue] | None = None,
        effect: Effect | None = None,
        watch: bool = False,
    ) -> Verdict:
        lines = (case.quote or "").splitlines()
        return Verdict(
            series=f"{self._tonight.cell}/{case.name}",
            judge="tests",
            status=status,
            effect=effect,
            n=len(self._history),
            policy={**self._policy.numbers(), **(policy or {}), "node": case.node},
            runs=self._tonight.jobs,
            explanation=f"{re.sub(r'^[^[]*[.]', '', case.name)} {text}",
            details=tuple(lines[-_MOST_LINES:]),
            watch=watch,
        )


def _find_files(names: Iterable[str]) -> set[str]:
    """The dotted names above some tests: of their classes, files and folders.

    >>> sorted(_find_files(["tests.test_a.test_x"]))
    ['tests', 'tests.test_a']
    """
    files: set[str] = set()
    for name in names:
        above = name.rpartition(".")[0]
        while above and above not in files:
            files.add(above)
            above = above.rpartition(".")[0]
    return files


def _is_in(name: str, files: Set[str]) -> bool:
    return not _find_files([name]).isdisjoint(files)
