"""The tests of a night, handed to their judge cell by cell.

In: a night's results, the tests of earlier nights, policies. Out: verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.suite import PastSuite
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.suite import Tonight, judge_suite

LONGEST_HISTORY = 60  # nights read per suite; a suite of 3,000 tests takes 10 ms to read


def judge_tests(
    results: NightResults, suites: Mapping[str, Sequence[PastSuite]], policies: Policies
) -> Iterator[Verdict]:
    joined = results.read_suites()
    for cell, records in results.suites_by_cell().items():
        tonight = Tonight(
            cell=cell,
            jobs=tuple(records),
            machine=next(iter(records.values())).environment.measured_on,
            suite=joined[cell],
        )
        yield from judge_suite(tonight, suites.get(cell, ()), policies.for_tests(cell))
