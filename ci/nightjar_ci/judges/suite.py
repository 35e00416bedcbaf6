"""Judge of a test suite: which tests fail, since when, which are flaky, which vanished, which became slower.

In: the tests of a cell tonight and in earlier nights. Out: a verdict for each test that a person should read, and one
for the suite. No test is judged by chance: a test that fails each time it is run is red, and one that fails once and
then passes is on watch. A known failure is not red until it passes. A file that cannot
be imported is one failing test: it was good in the nights in which its own tests ran, and those have not vanished.
A command that fails as a whole was good in the nights in which it did not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from statistics import median

from pydantic import JsonValue

from nightjar_ci.formats.policy import SuitePolicy
from nightjar_ci.formats.suite import SUITE, WHOLE_COMMAND, Case, PastSuite, Suite, describe_counts
from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.finding import count

MOST_NAMED = 20  # tests with their own verdict, of each kind
_MOST_LINES = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """The tests of a cell tonight.

    Attributes:
        machine: their machine; times of different machines are not compared.
        accepted: the nights from which another number of tests is wanted.
    """

    night: str
    cell: str
    jobs: tuple[str, ...]
    machine: str
    suite: Suite
    accepted: Collection[str] = ()


def judge_suite(tonight: Tonight, history: Sequence[PastSuite], policy: SuitePolicy) -> list[Verdict]:
    judge = _Judge(tonight, history, policy)
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
        self._tonight, self._policy = tonight, policy
        self._past = [(past, past.suite.by_name()) for past in history]
        self._compared = self._past[-policy.nights :]  # a test may have failed for longer
        self._stand_ins = {past.night: _find_stand_ins(cases) - cases.keys() for past, cases in self._past}

    def explain_failure(self, case: Case) -> Verdict:
        """The night since which a test fails, and its assertion."""
        last_good = since = None
        for night, past in self._of(case.name):
            if past.state in ("passed", "flaky"):
                last_good, since = night, None
            elif past.state == "failed" and since is None:
                since = night
        hidden = len(self._find_behind(case.name))
        runs = f" in each of {case.runs} runs" if case.runs > 1 else ""
        again = f", tonight{runs}" if runs else ""
        if last_good is not None and not since and case.name in self._stand_ins[last_good]:
            text = f"fails tonight{runs}, and its {count(hidden, 'test')} ran in night {last_good}"
        elif last_good is not None and not since:
            text = f"fails tonight{runs}, and passed in night {last_good}"
        elif last_good is not None:
            text = f"fails since night {since}{again}, and passed in night {last_good}"
        elif since:
            text = f"fails since night {since}{again}, and no earlier night saw it pass"
        elif self._past:
            text = f"fails{runs}, and is new or did not run before"
        else:
            text = f"fails{runs}, in the first night of its suite"
        numbers: dict[str, JsonValue] = {"good_night": last_good, "since": since, "tests": max(hidden, 1)}
        return self._verdict(case, "regressed", f"{text}: {case.message}", policy=numbers)

    def find_fixed(self) -> Iterator[Verdict]:
        fixed = []
        for case in (*self._tonight.suite.cases, *self._find_mended_stand_ins()):
            if case.state != "passed":
                continue
            before = [past.state for _, past in self._of(case.name) if past.state != "skipped"]
            if case.known is not None:
                fixed.append((case, f"is listed as a known failure, and passes: remove its entry ({case.known})"))
            elif before and before[-1] == "failed":
                fixed.append((case, "passes again"))
        yield from (self._verdict(case, "improved", text) for case, text in fixed[:MOST_NAMED])

    def _find_mended_stand_ins(self) -> Iterator[Case]:
        """The files, and the command, that failed when last seen, and whose tests run tonight: they pass."""
        here = self._tonight.suite.by_name()
        failed = {name for _, cases in self._past for name, case in cases.items() if case.state == "failed"}
        for name in sorted((failed & _find_stand_ins(here)) - here.keys()):
            *_, (_, last) = self._of(name)
            if last.state == "failed":
                yield last.model_copy(update={"state": "passed", "quote": None})

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
        compared = self._since_accepted()
        usual = median([len(_find_run(past.suite)) for past in compared] or [0])
        not_imported = self._find_not_imported()
        is_short = len(_find_run(suite)) + len(not_imported) < (1 - self._policy.vanished) * usual
        if is_short:  # the latest night may lack them, too
            compared = [past for past in compared if len(_find_run(past.suite)) >= usual]
        missing = {}
        if compared:
            missing = self._find_missing(compared[-1].suite, not_imported, is_short=is_short)
        for how, names in missing.items():
            parts.append(f"{count(len(names), 'test')} {how} since night {compared[-1].night}")
            details += [f"{how}: {name}" for name in names[:MOST_NAMED]]
        if status == "ok" and is_short:
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
            n=len(self._compared),
            policy={**self._policy.numbers(), **self._find_window(), "node": None},
            runs=self._tonight.jobs,
            explanation="; ".join(parts) + ".",
            details=tuple(details),
            watch=status == "ok" and bool(missing),
        )

    def _since_accepted(self) -> list[PastSuite]:
        """The compared nights since another number of tests was accepted; none if it was tonight."""
        nights = [*(past.night for past, _ in self._compared), self._tonight.night]
        first = max((nights.index(night) for night in self._tonight.accepted if night in nights), default=0)
        return [past for past, _ in self._compared[first:]]

    def _find_missing(self, before: Suite, not_imported: Set[str], *, is_short: bool) -> dict[str, list[str]]:
        """The tests of an earlier night that tonight lacks and, if too few ran, those that it skips."""
        here = self._tonight.suite.by_name()
        tests = before.by_name().keys() - not_imported - _find_stand_ins(here)
        missing = {"vanished": sorted(tests - here.keys())}
        if is_short:
            missing["skipped"] = sorted(_find_run(before) & here.keys() - _find_run(self._tonight.suite))
        return {how: names for how, names in missing.items() if names}

    def _find_not_imported(self) -> set[str]:
        """The tests in files that cannot be imported tonight, of the latest night that has any."""
        failed = (case.name for case in self._tonight.suite.cases if case.state == "failed")
        return set[str]().union(*map(self._find_behind, failed))

    def _find_behind(self, file: str) -> set[str]:
        """The tests for which a name stands, of the latest night that has any."""
        nights = (cases for past, cases in reversed(self._past) if file in self._stand_ins[past.night])
        return {name for name in next(nights, ()) if file == WHOLE_COMMAND or name.startswith(f"{file}.")}

    def _find_window(self) -> dict[str, JsonValue]:
        """The last night in which no test failed, and the first one after it."""
        since = None
        for past, _ in reversed(self._past):
            if not any(case.state == "failed" and case.known is None for case in past.suite.cases):
                return {"good_night": past.night, "since": since}
            since = past.night
        return {"good_night": None, "since": None}

    def _of(self, name: str) -> Iterator[tuple[str, Case]]:
        """A test's cases in earlier nights, oldest first; a stand-in is good in the nights that have its tests."""
        for past, cases in self._past:
            if name in cases:
                yield past.night, cases[name]
            elif name in self._stand_ins[past.night]:
                yield past.night, Case(name=name, state="passed")

    def _times(self, case: Case) -> Iterator[Case]:
        for past, cases in self._compared:
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
            n=len(self._compared),
            policy={**self._policy.numbers(), **(policy or {}), "node": case.node},
            runs=self._tonight.jobs,
            explanation=f"{re.sub(r'^[^[]*[.]', '', case.name)} {text}",
            details=tuple(lines[-_MOST_LINES:]),
            watch=watch,
        )


def _find_stand_ins(tests: Iterable[str]) -> set[str]:
    """The names under which tests fail that cannot run: of their classes, files and folders, and of the command.

    >>> sorted(_find_stand_ins(["tests.test_a.test_x"]))
    ['command', 'tests', 'tests.test_a']
    """
    names = {WHOLE_COMMAND}
    for test in tests:
        above = test.rpartition(".")[0]
        while above and above not in names:
            names.add(above)
            above = above.rpartition(".")[0]
    return names


def _find_run(suite: Suite) -> set[str]:
    """The tests that were run, or had no time to."""
    return {case.name for case in suite.cases if case.state != "skipped" or case.cut}
