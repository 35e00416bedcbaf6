"""The judge of test suites: since when, flaky, fixed, vanished, slower; and how rarely it is wrong about the last."""

from collections.abc import Collection

import numpy as np
import pytest

from nightjar_ci.formats.policy import SuitePolicy
from nightjar_ci.formats.suite import WHOLE_COMMAND, Case, CaseState, PastSuite, Suite
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.suite import MOST_NAMED, Tonight, judge_suite

MACHINE = "1 x cpu"


def case(name: str, state: CaseState = "passed", **changes: object) -> Case:
    if state in ("failed", "flaky"):
        changes = {"message": "AssertionError: sums", "quote": "trace", "runs": 3, **changes}
    return Case.model_validate({"name": name, "state": state, **changes})


def judge(*nights: list[Case], accepted: Collection[str] = (), compared: int = 30) -> dict[str, Verdict]:
    history = [
        PastSuite(night=f"night-{number}", machine=MACHINE, suite=Suite(cases=tuple(cases)))
        for number, cases in enumerate(nights[:-1])
    ]
    suite, name = Suite(cases=tuple(nights[-1])), f"night-{len(history)}"
    tonight = Tonight(night=name, cell="flax", jobs=("flax",), machine=MACHINE, suite=suite, accepted=accepted)
    verdicts = judge_suite(tonight, history, SuitePolicy(nights=compared))
    assert len({verdict.series for verdict in verdicts}) == len(verdicts)
    return {verdict.series.partition("/")[2]: verdict for verdict in verdicts}


def test_a_suite_that_passes_is_one_verdict() -> None:
    verdicts = judge([case("a"), case("b", "skipped")])
    assert list(verdicts) == ["tests_passed"]
    assert verdicts["tests_passed"].status == "ok"
    assert verdicts["tests_passed"].explanation == "1/1 tests passed, 1 skipped."


def test_a_newly_failing_test_names_the_last_night_in_which_it_passed() -> None:
    verdict = judge([case("m.a")], [case("m.a")], [case("m.a", "failed")])["m.a"]
    assert (verdict.status, verdict.policy["good_night"], verdict.policy["since"]) == ("regressed", "night-1", None)
    assert verdict.explanation == (
        "a fails tonight in each of 3 runs, and passed in night night-1: AssertionError: sums"
    )
    assert verdict.details == ("trace",)


def test_a_parameter_with_a_dot_is_a_part_of_the_name() -> None:
    assert judge([case("m.a[0.001]", "failed")])["m.a[0.001]"].explanation.startswith("a[0.001] fails")


def test_a_test_that_goes_on_failing_says_since_when() -> None:
    verdict = judge([case("a", "flaky")], [case("a", "failed")], [], [case("a", "failed")], [case("a", "failed")])["a"]
    assert (verdict.policy["good_night"], verdict.policy["since"]) == ("night-0", "night-1")
    assert "fails since night night-1, tonight in each of 3 runs, and passed in night night-0" in verdict.explanation


def test_a_test_that_is_red_for_longer_than_tests_are_compared_names_its_good_night() -> None:
    good, red = [case("a")], [case("a", "failed")]
    verdict = judge(*[good] * 10, *[red] * 4, compared=2)["a"]  # night-10 is after night-9
    assert (verdict.policy["good_night"], verdict.policy["since"], verdict.n) == ("night-9", "night-10", 2)


def test_nights_before_it_last_passed_and_nights_that_skipped_it_are_not_those_since_when_it_fails() -> None:
    nights = [[case("a", state)] for state in ("failed", "passed", "skipped", "failed", "failed")]
    verdict = judge(*nights)["a"]
    assert (verdict.policy["good_night"], verdict.policy["since"]) == ("night-1", "night-3")


@pytest.mark.parametrize(
    ("nights", "text"),
    [
        ([], "in the first night of its suite"),
        ([[case("b")]], "is new or did not run before"),
        ([[case("a", "failed")]], "no earlier night saw it pass"),
    ],
)
def test_a_test_that_never_passed_is_red_and_has_no_good_night(nights: list[list[Case]], text: str) -> None:
    verdict = judge(*nights, [case("a", "failed")])["a"]
    assert (verdict.status, verdict.policy["good_night"]) == ("regressed", None)
    assert text in verdict.explanation


def test_a_known_failure_is_red_for_nobody_until_it_passes() -> None:
    verdicts = judge([case("a", "failed", known="reason")])
    assert list(verdicts) == ["tests_passed"]
    assert verdicts["tests_passed"].explanation == "0/0 tests passed, 1 known to fail."
    fixed = judge([case("a", known="reason (https://example.com/1)")])["a"]
    assert fixed.status == "improved"
    assert fixed.explanation.endswith("remove its entry (reason (https://example.com/1))")


def test_a_test_that_passes_again_is_improved_once() -> None:
    assert judge([case("a", "failed")], [case("a")])["a"].status == "improved"
    assert list(judge([case("a", "failed")], [case("a")], [case("a")])) == ["tests_passed"]


def test_a_flaky_test_is_on_watch_and_says_how_often() -> None:
    first = judge([case("a")], [case("a", "flaky")])["a"]
    assert (first.status, first.watch) == ("ok", True)
    assert "for the first time" in first.explanation
    assert (
        "as in 1 of 2 earlier nights" in judge([case("a", "flaky")], [case("a")], [case("a", "flaky")])["a"].explanation
    )


def test_a_command_that_no_longer_fails_passes_and_has_not_vanished() -> None:
    many = [case(f"t{number:03}") for number in range(100)]
    verdicts = judge([*many, case(WHOLE_COMMAND, "failed")], many)
    whole = verdicts["tests_passed"]
    assert (whole.status, whole.watch, whole.details) == ("ok", False, ())
    assert verdicts[WHOLE_COMMAND].status == "improved"
    ran, crash = [case("a"), case("b")], [case(WHOLE_COMMAND, "failed")]
    red = judge(ran, crash, ran, ran, crash, crash)[WHOLE_COMMAND]
    assert (red.policy["good_night"], red.policy["since"]) == ("night-3", "night-4")


def test_vanished_tests_are_named_and_many_of_them_are_a_doubt() -> None:
    many = [case(f"t{number:03}") for number in range(100)]
    few = judge(many, many, many[:99])["tests_passed"]
    assert (few.status, few.watch, few.details) == ("ok", True, ("vanished: t099",))
    lost = judge(many, many, many[:90])["tests_passed"]
    assert lost.status == "cannot_tell"
    assert "10 tests vanished since night night-1; 100 ran in the usual night" in lost.explanation


@pytest.mark.parametrize(("rest", "how"), [([], "vanished"), ([case("t9", "skipped")], "skipped")])
def test_missing_tests_are_named_each_night_until_their_number_is_accepted(rest: list[Case], how: str) -> None:
    many = [case(f"t{number}") for number in range(10)]
    few = [*many[:9], *rest]
    later = judge(many, many, many, few, few)["tests_passed"]
    assert (later.status, later.details) == ("cannot_tell", (f"{how}: t9",))
    assert f"1 test {how} since night night-2" in later.explanation
    for night in ("night-3", "night-4"):
        wanted = judge(many, many, many, few, few, accepted=["night-1", night])["tests_passed"]
        assert (wanted.status, wanted.watch) == ("ok", False)
    again = judge(many, many, few, few, few[1:], accepted=["night-2"])["tests_passed"]
    assert (again.status, again.details) == ("cannot_tell", ("vanished: t0",))


def test_a_library_that_cannot_be_imported_is_one_suite_and_not_two_thousand_verdicts() -> None:
    many = [case(f"t{number:04}") for number in range(2000)]
    broken = [case(one.name, "failed") for one in many]
    verdicts = judge(many, broken, broken)
    assert len(verdicts) == MOST_NAMED + 1
    whole = verdicts["tests_passed"]
    assert (whole.status, whole.policy["good_night"], whole.policy["since"]) == ("regressed", "night-0", "night-1")


def test_a_test_that_takes_far_longer_than_the_longest_is_on_watch_once_there_are_nights_enough() -> None:
    def nights(number: int, last: float) -> list[list[Case]]:
        return [*([case("a", duration_s=1.0 + night % 3)] for night in range(number)), [case("a", duration_s=last)]]

    assert judge(*nights(12, 8.0))["a"].explanation == "a took 8 s: at most 3 s in 12 earlier nights"
    assert judge(*nights(12, 8.0))["a"].watch
    effect = judge(*nights(12, 8.0))["a"].effect
    assert effect is not None
    assert (effect.value, effect.unit) == (8.0 / 2.0 - 1, "relative change of its median time")
    assert "a" not in judge(*nights(12, 7.4))
    assert "a" not in judge(*nights(9, 70.0))


def test_times_that_only_vary_are_rarely_called_slower() -> None:
    """Log-normal times that vary by half: at most one test in 500 is called slower by chance."""
    rng = np.random.default_rng(7)
    times = 2.0 * np.exp(rng.normal(0.0, 0.5, size=(13, 2000)))
    nights = [[case(f"t{index}", duration_s=float(value)) for index, value in enumerate(row)] for row in times]
    wrong = len(judge(*nights)) - 1
    assert wrong <= MOST_NAMED / 5


def test_tests_that_the_time_limit_cut_are_neither_vanished_nor_missing() -> None:
    cut = [case(f"t{number}", "skipped", message="not run within 600 s") for number in range(90)]
    ran = [case(f"t{number}") for number in range(90)]
    others = [case(f"other{number}") for number in range(10)]
    whole = judge([*ran, *others], [*cut, *others])["tests_passed"]
    assert (whole.status, whole.watch) == ("ok", False)
    assert whole.explanation == "10/10 tests passed, 90 not run within the time limit."


def test_a_file_that_cannot_be_imported_was_good_when_its_tests_ran() -> None:
    ran = [case("tests.test_a.test_x"), case("tests.test_a.TestY.test_z"), case("tests.test_b.test_x")]
    broken = [case("tests.test_a", "failed"), case("tests.test_b.test_x")]
    verdicts = judge(ran, broken)
    red = verdicts["tests.test_a"]
    assert (red.status, red.policy["good_night"], red.policy["since"]) == ("regressed", "night-0", None)
    assert red.explanation.startswith("test_a fails tonight in each of 3 runs, and its 2 tests ran in night night-0")
    assert red.policy["tests"] == 2
    whole = verdicts["tests_passed"]
    assert (whole.status, whole.explanation) == (
        "ok",
        "1 failing test judged one by one; the others: 1/1 tests passed.",
    )
    assert judge(ran, broken, broken)["tests.test_a"].policy["since"] == "night-1"
    again = judge(ran, broken, ran)
    assert (again["tests.test_a"].status, again["tests.test_a"].explanation) == ("improved", "test_a passes again")
    assert list(judge(ran, broken, ran, ran)) == ["tests_passed"]
    assert "vanished" not in again["tests_passed"].explanation


def test_a_test_that_vanished_beside_a_file_that_fails_is_named() -> None:
    verdicts = judge([case("a.test_x"), case("b.test_y")], [case("a", "failed")])
    assert verdicts["tests_passed"].details == ("vanished: b.test_y",)


@pytest.mark.parametrize("known", [None, "waits"])
def test_the_tests_of_a_file_that_cannot_be_imported_are_not_missing_in_later_nights(known: str | None) -> None:
    ran = [case(f"{file}.test_{number}") for file in ("a", "b") for number in range(5)]
    broken = [*ran[:5], case("b", "failed", known=known)]
    assert judge(ran, ran, ran, broken, broken)["tests_passed"].status == "ok"
    again = judge(ran, broken, broken, ran)["b"]
    assert (again.status, "remove its entry (waits)" in again.explanation) == ("improved", known is not None)
