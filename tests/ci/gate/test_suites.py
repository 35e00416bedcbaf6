"""The tests of a night at its gate: each cell's against its own earlier nights, and what notes say of them."""

from pathlib import Path

import pytest

from nightjar_ci.formats.ledger import Due, Measured
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import Policies, SuitePolicy
from nightjar_ci.formats.suite import SUITE, Case, CaseState, PastSuite, Suite
from nightjar_ci.formats.verdict import Status
from nightjar_ci.gate.gate import judge_night
from nightjar_ci.gate.history import Memory
from nightjar_ci.gate.presence import judge_presence
from nightjar_ci.judges.suite import Tonight, judge_suite
from tests.ci.nights import CELL, make_night, outcome, record

POLICIES = Policies.model_validate({"schema": "nightjar.policies/1"})
ADD = "tests.test_add"


def suite(state: CaseState) -> Suite:
    return Suite(cases=(Case(name=ADD, state=state, duration_s=0.1),))


def leave_night(folder: Path, state: CaseState) -> Path:
    tests = record(0).model_copy(update={"tests": suite(state), "curves": (), "samples": (), "facts": ()})
    return make_night(folder / "night", [(outcome(), tests)])


def test_a_flaky_test_is_on_watch_and_is_not_counted_among_the_series(tmp_path: Path) -> None:
    judged = judge_night(read_night_results(leave_night(tmp_path, "flaky")), POLICIES, tmp_path / "baselines")
    assert ("ok", True) in [(verdict.status, verdict.watch) for verdict in judged.verdicts if verdict.judge == "tests"]
    assert not any("on watch" in note for note in judged.notes)


def test_tonights_tests_are_compared_with_those_of_the_same_cell_alone(tmp_path: Path) -> None:
    results = read_night_results(leave_night(tmp_path, "passed"))
    machine = record(0).environment.measured_on
    earlier = [PastSuite(night="2026-11-20", machine=machine, suite=suite("failed"))]
    for cell, expected in ((CELL, ["improved"]), ("another", [])):
        judged = judge_night(results, POLICIES, tmp_path / "baselines", suites={cell: earlier})
        assert [v.status for v in judged.verdicts if v.judge == "tests" and v.status == "improved"] == expected


@pytest.mark.parametrize(("night", "status"), [("2026-11-20", "cannot_tell"), ("2026-11-21T0300-1a2b", "ok")])
def test_another_number_of_tests_is_usual_once_it_is_accepted(tmp_path: Path, night: str, status: Status) -> None:
    two = Suite(cases=(*suite("passed").cases, Case(name="tests.test_more", state="passed")))
    earlier = {CELL: [PastSuite(night="2026-11-20", machine="m", suite=two)]}
    results = read_night_results(leave_night(tmp_path, "passed"))
    memory = Memory(accepted={f"{CELL}/{SUITE}": [night]})
    (verdict,) = judge_night(results, POLICIES, tmp_path / "baselines", memory=memory, suites=earlier).verdicts
    assert (verdict.series, verdict.status) == (f"{CELL}/{SUITE}", status)


@pytest.mark.parametrize(("measured", "named"), [("zero", 0), ("missing", 1)])
def test_a_suite_in_which_nothing_passes_is_judged_by_its_tests_alone(measured: Measured, named: int) -> None:
    series = f"{CELL}/{SUITE}"
    entry = Due(series=series, kind="sample", unit="tests", better="higher", had=1, of=1, measured=measured)
    tonight = Tonight(night="tonight", cell=CELL, jobs=(CELL,), machine="m", suite=suite("failed"))
    verdicts = judge_suite(tonight, [PastSuite(night="n", machine="m", suite=suite("passed"))], SuitePolicy())
    assert [verdict.status for verdict in verdicts] == ["regressed", "ok"]
    assert len(list(judge_presence([entry], verdicts, "tonight"))) == named
