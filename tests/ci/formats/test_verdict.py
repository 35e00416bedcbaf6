import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.verdict import (
    WORST_FIRST,
    Effect,
    Judge,
    NightVerdicts,
    Status,
    Verdict,
    decide_exit_code,
    describe_exit,
    read_verdicts,
    sort_worst_first,
)
from tests.ci.site.test_site import make_verdict


def verdict(status: Status = "ok", effect: float | None = None, series: str = "cell/loss") -> Verdict:
    found = None if effect is None else Effect(value=effect, unit="final loss")
    return make_verdict(status, series, judge="convergence", effect=found, interval=None)


@pytest.mark.parametrize(
    ("statuses", "states", "expected"),
    [
        ((), (), 0),
        (("ok", "improved"), ("completed",), 0),
        (("ok", "cannot_tell"), ("completed",), 4),
        (("regressed", "cannot_tell"), ("completed",), 1),
        (("regressed", "ok"), ("completed", "timeout"), 3),
        ((), ("not_started",), 3),
    ],
)
def test_the_first_exit_code_applies(statuses: tuple[Status, ...], states: tuple[str, ...], expected: int) -> None:
    assert decide_exit_code([verdict(status) for status in statuses], states) == expected


@given(st.lists(st.sampled_from(WORST_FIRST)), st.lists(st.sampled_from(["completed", "failed", "killed", "invalid"])))
def test_exit_code_is_0_only_if_nothing_is_wrong_or_in_doubt(statuses: list[Status], states: list[str]) -> None:
    good = set(statuses) <= {"ok", "improved"} and set(states) <= {"completed"}
    assert (decide_exit_code([verdict(status) for status in statuses], states) == 0) is good


def test_verdicts_are_sorted_worst_first_and_the_larger_effect_first() -> None:
    mixed = [verdict("ok", 5.0), verdict("regressed", 0.1), verdict("regressed", -math.inf), verdict("cannot_tell")]
    ordered = sort_worst_first(mixed)
    assert [v.status for v in ordered] == ["regressed", "regressed", "cannot_tell", "ok"]
    assert ordered[0].effect == Effect(value=-math.inf, unit="final loss")


def test_verdicts_survive_a_round_trip_with_infinite_numbers(tmp_path: Path) -> None:
    one = verdict("regressed", math.inf).model_copy(
        update={"interval": (-math.inf, math.nan), "policy": {"tolerance": {"memory.*": math.inf}}}
    )
    write_json(tmp_path / "verdicts.json", NightVerdicts(night="n", verdicts=(one,), notes=("off",)))
    assert "Infinity" in (tmp_path / "verdicts.json").read_text()
    back = read_verdicts(tmp_path / "verdicts.json").verdicts[0]
    assert back.effect == one.effect
    assert back.interval is not None
    assert math.isnan(back.interval[1])


def bad(judge: Judge, status: Status = "regressed", series: str = "cell/loss") -> Verdict:
    return verdict(status, series=series).model_copy(update={"judge": judge})


@pytest.mark.parametrize(
    ("code", "verdicts", "numbers", "said"),
    [
        (0, [], {}, "all jobs completed, nothing was judged"),
        (0, [], {"checked": 7}, "all jobs completed and checked 7 numbers"),
        (0, [verdict()], {}, "all is well"),
        (0, [verdict()], {"cut": 1}, "all is well in what ran, and 1 test was not run within the time limit"),
        (1, [bad("tests")], {}, "1 test fails"),
        (1, [bad("tests"), bad("tests")], {"cut": 2}, "2 tests fail, and 2 tests were not run within the time limit"),
        (1, [bad("tests"), bad("tests"), bad("tests", series="c/tests_passed")], {}, "more than 2 tests fail"),
        (1, [bad("tests"), bad("facts"), bad("facts")], {}, "2 series regressed and 1 test fails"),
        (3, [bad("facts")], {}, "a job did not complete, and 1 series regressed"),
        (4, [], {"not_run": 1}, "no regression found, but one job has not run"),
        (4, [verdict("cannot_tell")], {}, "no regression found, but at least one judge cannot tell"),
        (4, [bad("presence", "cannot_tell")], {}, "no regression found, but one due series is absent or unusable"),
        (4, [bad("presence", "cannot_tell")] * 2, {}, "no regression found, but 2 due series are absent or unusable"),
    ],
)
def test_the_end_of_a_night_in_words(code: int, verdicts: list[Verdict], numbers: dict[str, int], said: str) -> None:
    assert describe_exit(code, verdicts, **numbers) == said
