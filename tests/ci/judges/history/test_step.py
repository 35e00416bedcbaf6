"""A step of the last nights: found at the size of the noise, and not in noise of any kind."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.judges.history.change_points import Change
from nightjar_ci.judges.history.last_nights import screen_last_nights
from nightjar_ci.judges.history.step import NIGHTS, find_step

Array = npt.NDArray[np.float64]
Rng = np.random.Generator
POLICY = HistoryPolicy()
FLOOR = float(np.log1p(POLICY.floor))


def find(values: Array, alike: float | None = None) -> Change | None:
    return find_step(values, FLOOR, POLICY.min_nights, alike)


def test_five_percent_are_found_within_ten_nights_in_noise_of_two() -> None:
    values = np.random.default_rng(1).normal(0, 0.02, (100, 70))
    values[:, 60:] += np.log(1.05)
    steps = [find(row, 0.0) for row in values]
    found = [step for step in steps if step is not None]
    assert len(found) >= 80
    assert np.median([step.shift for step in found]) == pytest.approx(np.log(1.05), abs=0.01)
    assert np.median([step.index for step in found]) == 60
    assert all(step.low < step.shift < step.high for step in found)


@pytest.mark.parametrize("nights", NIGHTS[1:])
def test_a_clear_step_begins_on_the_first_of_its_nights(nights: int) -> None:
    values = np.random.default_rng(9).normal(0, 0.01, 60 + nights)
    values[60:] += np.log(1.12)
    step = find(values)
    assert step is not None
    assert step.index == 60


def draw_ar(rng: Rng) -> Array:
    values = rng.normal(0, 1, (3000, 70))
    for night in range(1, 70):
        values[:, night] = 0.6 * values[:, night - 1] + 0.8 * values[:, night]
    return values


def draw_loud_times(rng: Rng) -> Array:
    states = np.cumsum(rng.random((3000, 70)) < 0.05, axis=1) % 2
    return np.asarray(rng.normal(0, 1, (3000, 70)) * np.where(states, 3.0, 0.5), dtype=np.float64)


def draw_drift(rng: Rng) -> Array:
    return np.asarray(rng.normal(0, 1, (3000, 70)) + 0.01 * np.arange(70), dtype=np.float64)


def draw_outliers(rng: Rng) -> Array:
    return np.asarray(rng.normal(0, 1, (3000, 70)) + 15 * (rng.random((3000, 70)) < 0.05), dtype=np.float64)


@pytest.mark.parametrize("draw", [draw_ar, draw_loud_times, draw_drift, draw_outliers])
def test_unchanged_series_have_no_step(draw: Callable[[Rng], Array]) -> None:
    """One in 20,000 nights is stated; AR(1) noise has up to three times as many while a series is judged by itself."""
    values = 0.01 * draw(np.random.default_rng(2))
    doubtful = screen_last_nights(values, POLICY.window, FLOOR, POLICY.min_nights).p <= POLICY.trigger
    assert sum(find(row) is not None for row in values[doubtful]) <= 3  # P(> 3) = 0.2 % at one in 4,000


def test_a_drift_is_not_a_step() -> None:
    values = 0.002 * np.random.default_rng(3).normal(0, 1, 100) + 5e-4 * np.arange(100)
    assert find(values) is None


def test_nights_that_became_loud_are_not_a_step_and_calm_ones_as_far_up_are() -> None:
    quiet = 0.005 * np.random.default_rng(4).normal(0, 1, 60)
    loud = np.array([0.01, 0.09, 0.02, 0.07, 0.005, 0.03, 0.08, 0.02])
    assert find(np.append(quiet, loud)) is None
    assert find(np.append(quiet, np.full(8, loud.mean()) + quiet[:8])) is not None


def test_nights_that_resemble_their_neighbours_count_less() -> None:
    values = np.random.default_rng(5).normal(0, 0.02, 70)
    values[60:] += 0.055
    alone, among_correlated = find(values, 0.0), find(values, 0.8)
    assert alone is not None
    assert among_correlated is None or among_correlated.p > alone.p


@pytest.mark.parametrize(
    ("noise", "nights", "since", "change"),
    [(1e-5, 70, 60, 0.5 * FLOOR), (0.01, 70, 60, -0.1), (0.01, 15, 11, 0.3)],
    ids=["below the floor", "for the better", "after eleven nights"],
)
def test_a_change_that_does_not_count_is_no_step(noise: float, nights: int, since: int, change: float) -> None:
    values = np.random.default_rng(6).normal(0, noise, nights)
    values[since:] += change
    assert find(values) is None
