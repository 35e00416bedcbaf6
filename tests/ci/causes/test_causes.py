"""The causes of a night: what one change explains is one, red first."""

from dataclasses import replace

import pytest

from nightjar_ci.causes.causes import find_causes, shorten_message
from nightjar_ci.formats.outcome import State
from nightjar_ci.formats.verdict import Verdict
from tests.ci.nights import failed
from tests.ci.site.test_site import make_page, make_verdict, only_row, stored


def slower(cells: int, measure: str = "step_time") -> list[Verdict]:
    return [make_verdict("regressed", f"cell{number}/{measure}") for number in range(cells)]


def same(verdicts: list[Verdict], status: str) -> list[Verdict]:
    return [verdict.model_copy(update={"status": status}) for verdict in verdicts]


def test_what_regressed_between_the_same_nights_is_one_cause_whatever_judge_found_it() -> None:
    red = [*slower(11), *[make_verdict("regressed", f"cell{n}/train_step", judge="facts") for n in range(11)]]
    nights = [stored(1, *same(red, "ok")), stored(2, *red, jax="0.10.2"), stored(3, *red, jax="0.10.2")]
    (cause,) = find_causes(only_row(nights))
    assert (cause.kind, cause.title) == ("regressed", "22 series of 11 cells: regressed")
    assert cause.when == "Since night 2026-11-02T0300-0000, for 2 nights; the last good night is 2026-11-01T0300-0000."
    assert cause.what_changed == "jax 0.10.1 -> 0.10.2; jaxlib 0.10.1 -> 0.10.2."


def test_a_cause_says_what_each_judge_found_first_and_how_many_tests_fail() -> None:
    lost = make_verdict("regressed", "cell0/loss", judge="convergence", effect=None)
    files = [
        make_verdict(
            "regressed", f"suite/test_{n}", judge="tests", policy={"tests": 565}, explanation=f"test_{n} fails"
        )
        for n in range(2)
    ]
    red = [*files, lost]
    (cause,) = find_causes(only_row([stored(1, *same(red, "ok")), stored(2, *red)]))
    assert (cause.title, cause.verdicts[0].judge) == ("1 series and 1,130 tests of 2 cells: regressed", "convergence")
    assert cause.explanation.splitlines() == [lost.explanation, "test_0 fails"]


def test_what_began_in_another_night_is_another_cause() -> None:
    old, new = slower(2), slower(3, "peak_memory")
    nights = [
        stored(1, *same([*old, *new], "ok")),
        stored(2, *old, *same(new, "ok")),
        stored(3, *old, *new, git_sha="d" * 40),
    ]
    causes = find_causes(only_row(nights))
    assert [(len(cause.verdicts), cause.nights) for cause in causes] == [(3, 1), (2, 2)]
    assert causes[1].what_changed == (
        "No package and no commit: look at changes that are not committed, then at the machine."
    )


def test_a_doubt_joins_the_regression_that_began_with_it_and_is_a_cause_of_its_own_elsewhere() -> None:
    red, doubt = slower(1), make_verdict("cannot_tell", "cell0/loss", judge="convergence")
    before = [*same(red, "ok"), *same([doubt], "ok")]
    (cause,) = find_causes(only_row([stored(1, *before), stored(2, *red, doubt)]))
    assert [verdict.series for verdict in cause.verdicts] == ["cell0/step_time", "cell0/loss"]
    (cause,) = find_causes(only_row([stored(1, *before), stored(2, doubt)]))
    assert (cause.kind, cause.title) == ("cannot_tell", "cell0/loss: cannot tell")


def test_jobs_that_failed_alike_are_one_cause_with_what_they_left_out_and_come_first() -> None:
    absent = [make_verdict("cannot_tell", f"cell{n}/loss", judge="presence", effect=None) for n in range(3)]
    jobs = tuple(failed(f"cell{n}-s0", message=f"Traceback\ncell{n}-s0: out of memory at 0x7f{n}") for n in range(3))
    other = failed("other-s0", message="no such file")
    red = slower(9)
    tonight = replace(stored(2, *red, *absent), failed=(*jobs, other))
    causes = find_causes(only_row([stored(1, *same(red, "ok")), tonight]))
    assert [(cause.kind, cause.title) for cause in causes] == [
        ("failed", "3 jobs: failed"),
        ("failed", "other-s0: failed"),
        ("regressed", "9 series of 9 cells: regressed"),
    ]
    assert (causes[0].explanation, len(causes[0].verdicts)) == ("JOB: out of memory at 0x...", 3)
    assert causes[0].good == "2026-11-01T0300-0000"


@pytest.mark.parametrize(
    ("state", "message", "explanation"),
    [
        (
            "failed",
            "x: exit code 1 after 7.6 s, expected 0: OSError: no room. The last lines of x/stderr.log:\n"
            "OSError: no room\nsome more\nHint: run it alone",
            "OSError: no room",
        ),
        (
            "timeout",
            "x: still running at timeout_s = 60; killed. The last lines of x/stderr.log:\nValueError: not this\n"
            "Hint: raise timeout_s",
            "JOB: still running at timeout_s = 60; killed.",
        ),
        ("killed", "x: killed by SIGKILL after 3.1 s. x/stderr.log is empty. Hint: out of memory?", "JOB: killed by"),
    ],
)
def test_a_failed_job_is_explained_by_its_error_and_not_by_the_hint(
    state: State, message: str, explanation: str
) -> None:
    (cause,) = find_causes(only_row([replace(stored(1), failed=(failed("x", state, message),))]))
    assert cause.explanation.startswith(explanation)
    assert "some more" not in cause.explanation


def test_new_tonight_comes_first_and_a_curve_that_is_not_finite_before_all_else_and_with_its_last_good_night() -> None:
    old, new = slower(9), slower(2, "trace_time")
    nan = make_verdict("regressed", "cell0/loss", judge="convergence", policy={"fault": True})
    shared = make_verdict("cannot_tell", "cell9/step_time", policy={"shared": 40})
    before = [*old, *same(new, "ok"), *same([nan], "cannot_tell"), *same([shared], "ok")]
    nights = [stored(1, *same(old, "ok")), stored(2, *before), stored(3, *old, nan, shared)]
    causes = find_causes(only_row(nights))
    assert [(cause.title, cause.is_new) for cause in causes] == [
        ("cell0/loss: regressed", True),
        ("9 series of 9 cells: regressed", False),
        ("all 40 series like cell9/step_time: cannot tell", True),
    ]
    cards = make_page(nights).partition('id="regressed"')[2]
    assert cards.index("<h3>cell0/loss") < cards.index("<h3>cell0/step_time")
    assert causes[0].good == nights[1].id  # its curve was finite, though nothing said that it was right
    tonight = stored(3, *slower(1, "compile_time"), nan)
    assert find_causes(only_row([nights[1], tonight]))[0].verdicts[0] is nan


@pytest.mark.parametrize(
    ("bad", "nights", "since", "good"),
    [((1, 3), 1, 3, 2), ((2, 3), 2, 2, 1), ((1, 2, 3), 3, 1, 0)],
)
def test_a_job_has_failed_since_the_first_of_its_last_nights_without_a_good_one(
    bad: tuple[int, ...], nights: int, since: int, good: int
) -> None:
    row = only_row([replace(stored(n), failed=(failed("x"),) * (n in bad)) for n in (1, 2, 3)])
    (cause,) = find_causes(row)
    assert (cause.nights, cause.since) == (nights, f"2026-11-{since:02}T0300-0000")
    assert cause.good == (f"2026-11-{good:02}T0300-0000" if good else None)


@pytest.mark.parametrize(
    ("environment", "packages", "told"),
    [("uv:jax", {"jax": "1"}, "Not known"), ("current", {}, "Not known"), ("current", {"jax": "1"}, "No package")],
)
def test_what_changed_is_not_known_without_packages(environment: str, packages: dict[str, str], told: str) -> None:
    nights = [stored(n, environment="current", packages=packages) for n in (1, 2)]
    nights[1] = replace(nights[1], failed=(failed("x", environment=environment),))
    (cause,) = find_causes(only_row(nights))
    assert cause.what_changed.startswith(told)


def test_an_error_is_told_with_three_hundred_characters() -> None:
    said = [shorten_message(failed("x", message=text)) for text in ("", "e" * 300, "e" * 301)]
    assert said == ["no message", "e" * 300, "e" * 300]


def test_without_an_earlier_night_nothing_is_blamed_each_judge_is_a_cause_and_a_doubt_joins_nothing() -> None:
    red = [*slower(3), make_verdict("regressed", "cell0/train_step", judge="facts")]
    causes = find_causes(only_row([stored(1, *red, make_verdict("cannot_tell", "cell0/loss"))]))
    assert [(cause.kind, len(cause.verdicts)) for cause in causes] == [
        ("regressed", 3),
        ("regressed", 1),
        ("cannot_tell", 1),
    ]
    assert causes[0].when == "New tonight; the last good night is not known."
    assert causes[0].what_changed == "Unknown, as the last good night is."


def test_what_improved_comes_last_and_what_is_ok_is_no_cause() -> None:
    better, red = make_verdict("improved", "cell9/step_time"), slower(1)
    nights = [stored(1, *same([better, *red], "ok")), stored(2, better, *red, make_verdict("ok", "cell8/loss"))]
    first, last = find_causes(only_row(nights))
    assert (first.kind, last.kind) == ("regressed", "improved")
    assert (last.since, last.good, last.nights) == ("2026-11-02T0300-0000", "2026-11-01T0300-0000", 1)
    (alone,) = find_causes(only_row([stored(1, better)]))
    assert (alone.since, alone.good) == ("2026-11-01T0300-0000", None)
