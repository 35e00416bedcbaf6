"""The noise of all series of a night explains jumps that a young history of one series cannot."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.formats.series import Series
from nightjar_ci.gate.history import Memory, judge_histories, screen_histories
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.history.pool import Pool, count_runs, make_pool
from tests.ci.judges.judged import make_series

Array = npt.NDArray[np.float64]
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [HistoryPolicy().model_dump()]})


def make_night(values: Array) -> list[Series]:
    return [make_series(np.exp(row), f"cell-{number}/step_time") for number, row in enumerate(values)]


def judge(values: Array) -> list[str]:
    verdicts = list(judge_histories(Memory(series=make_night(values)), POLICIES, (), {}, []))
    return [verdict.status for verdict in adjust_for_night(verdicts, POLICIES.night)]


def with_rare_mode(shape: tuple[int, int], rng: np.random.Generator) -> Array:
    values: Array = rng.normal(0, 0.01, shape) + np.log(1.3) * (rng.random(shape) < 0.1)
    return values


def test_three_nights_in_a_mode_that_the_other_series_know_are_no_regression() -> None:
    rng = np.random.default_rng(0)
    values = with_rare_mode((200, 15), rng)
    values[0, :12] = rng.normal(0, 0.01, 12)  # this one has never shown it
    values[0, 12:] = np.log(1.3) + rng.normal(0, 0.01, 3)
    assert judge(values)[0] == "cannot_tell"
    assert judge(values[:1])[0] == "regressed"  # where nothing else is known
    values[1:] = rng.normal(0, 0.01, (199, 15))
    assert judge(values)[0] == "regressed"


def test_a_night_as_far_out_as_those_of_other_series_is_no_doubt() -> None:
    rng = np.random.default_rng(3)
    values = with_rare_mode((200, 40), rng)
    values[0] = rng.normal(0, 0.01, 40)
    values[0, -1] = np.log(1.3)
    assert judge(values)[0] == "ok"
    values[1:] = rng.normal(0, 0.01, (199, 40))
    assert judge(values)[0] == "cannot_tell"


def test_a_threefold_step_among_series_with_a_rare_mode_is_red_on_its_third_night() -> None:
    rng = np.random.default_rng(1)
    values = with_rare_mode((200, 43), rng)
    values[:5, 40:] = np.log(3) + rng.normal(0, 0.01, (5, 3))
    assert judge(values)[:5] == ["regressed"] * 5


def test_a_change_of_many_series_at_once_does_not_explain_itself() -> None:
    values = np.random.default_rng(2).normal(0, 0.01, (100, 23))
    values[:40, 20:] += np.log(1.3)
    assert judge(values).count("regressed") == 40


@pytest.mark.parametrize("kind", ["rare mode", "AR(1) of 3 %", "outliers"])
def test_unchanged_young_series_are_red_on_at_most_one_in_a_thousand_nights(kind: str) -> None:
    rng = np.random.default_rng(3)
    red = 0
    for _ in range(40):  # nights of 100 series that judge a jump: 0.008 are expected at one in 1,000 nights of 500
        values = with_rare_mode((100, 15), rng)
        if kind == "AR(1) of 3 %":
            values = rng.normal(0, 0.03, (100, 15))
            for night in range(1, 15):
                values[:, night] = 0.6 * values[:, night - 1] + 0.8 * values[:, night]
        elif kind == "outliers":
            slow = (rng.random((100, 15)) < 0.03) * np.log1p(rng.uniform(0.1, 0.5, (100, 15)))
            values = rng.normal(0, 0.02, (100, 15)) + slow
        red += judge(values).count("regressed")
    assert red == 0


@given(st.lists(st.sampled_from([0.0, 9.0]), max_size=30))
def test_runs_are_counted_as_a_reader_would(values: list[float]) -> None:
    text = "".join("x" if value else "." for value in values)
    runs = [len(run) for run in text.rpartition(".")[0].split(".")]
    assert count_runs(np.array([*values, np.nan]), 5.0) == (runs.count(1), runs.count(2))
    assert count_runs(np.array(values), 5.0) == (runs.count(1), runs.count(2))  # one at the end may go on


def test_farther_longer_and_better_known_series_are_rarer() -> None:
    rng = np.random.default_rng(4)
    pool = Pool(distances=np.append(rng.standard_t(2, 5000), np.nan), series=1, alike=0.0, restless=0.0)
    by_distance = [pool.run_p(distance, 3, 20) for distance in (3.0, 10.0, 40.0, 200.0)]
    by_nights = [pool.run_p(10.0, nights, 20) for nights in (3, 4, 6, 8)]
    by_own = [pool.run_p(10.0, 3, own) for own in (12, 50, 180)]
    for chances in (by_distance, by_nights, by_own):
        assert chances == sorted(chances, reverse=True)
        assert chances[0] > chances[-1]


def with_loud_spells(shape: tuple[int, int], rng: np.random.Generator) -> Array:
    loud = np.cumsum(rng.random(shape) < 0.05, axis=1) % 2
    values: Array = rng.normal(0, 1, shape) * np.where(loud, 0.03, 0.005)
    return values


def test_the_first_nights_of_a_loud_spell_are_no_step_where_other_series_have_such_spells() -> None:
    rng = np.random.default_rng(5)
    values = with_loud_spells((200, 52), rng)
    values[0, :46] = rng.normal(0, 0.006, 46)  # this one has never been loud
    values[0, 46:] = [0.013, 0.036, 0.025, 0.034, 0.031, 0.036]
    assert judge(values)[0] != "regressed"
    values[1:] = rng.normal(0, 0.005, (199, 52))
    assert judge(values)[0] == "regressed"


def test_a_step_of_quiet_nights_is_found_among_series_with_loud_spells() -> None:
    rng = np.random.default_rng(6)
    values = with_loud_spells((200, 60), rng)
    values[:10] = rng.normal(0, 0.005, (10, 60))
    values[:10, 50:] += np.log(1.05)
    assert judge(values)[:10] == ["regressed"] * 10


def with_neighbours_alike(shape: tuple[int, int], rng: np.random.Generator) -> Array:
    values: Array = rng.normal(0, 0.01, shape)
    for night in range(1, shape[1]):
        values[:, night] = 0.6 * values[:, night - 1] + 0.8 * values[:, night]
    return values


def with_outliers(shape: tuple[int, int], rng: np.random.Generator) -> Array:
    values: Array = rng.normal(0, 0.02, shape) + 0.3 * (rng.random(shape) < 0.03)
    return values


@pytest.mark.parametrize(
    ("draw", "in_spells"),
    [(with_loud_spells, True), (with_neighbours_alike, False), (with_outliers, False), (with_rare_mode, False)],
)
@pytest.mark.parametrize("nights", [24, 60])
def test_spells_are_told_from_other_noise(
    draw: Callable[[tuple[int, int], np.random.Generator], Array], in_spells: bool, nights: int
) -> None:
    screened = screen_histories(Memory(series=make_night(draw((200, nights), np.random.default_rng(7)))), POLICIES)
    assert make_pool(screened).in_spells is in_spells
