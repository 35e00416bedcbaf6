"""The level that the series of a machine share, and drifts: what is one, and what is not."""

from typing import Any

import numpy as np
import pytest

from nightjar_ci.formats.policy import HistoryPolicy, NightPolicy
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.history.drift import Drift, find_drift
from nightjar_ci.judges.history.history import judge_screened
from nightjar_ci.judges.history.screening import ScreenedSeries, screen_all
from nightjar_ci.judges.history.segment import current_segment
from nightjar_ci.judges.history.shared import Shared, _find_alike, take_explained
from tests.ci.judges.judged import make_series
from tests.ci.judges.test_doors import make_pairs

STEP, LAST = 0.08, slice(-3, None)


def noise(series: int, nights: int = 60) -> Any:
    return np.random.default_rng(0).normal(0, 0.01, (series, nights))


def explain(values: Any, accepted: str = "") -> tuple[Any, Shared | None, dict[int, Drift]]:
    segments = [current_segment(make_series(np.exp(row)), HistoryPolicy(), [accepted]) for row in values]
    shared, drifts = take_explained(segments, ["machine"] * len(segments), ())
    return np.array([segment.values for segment in segments if len(segment.values) == 60]), shared.get(0), drifts


@pytest.mark.parametrize(("series", "nights", "found"), [(7, 3, False), (8, 3, True), (40, 2, True), (40, 1, False)])
def test_eight_series_that_change_for_two_nights_are_one_finding(series: int, nights: int, found: bool) -> None:
    values = noise(series)
    values[:, -nights:] += STEP
    left, shared, _ = explain(values)
    assert (shared is not None) is found
    assert bool(abs(left[1, -nights:].mean()) < STEP / 2) is (series >= 8)  # and it is in no other series
    if shared is not None:
        assert (shared.series, shared.since, shared.slope) == (series, f"{60 - nights:06d}", None)
        assert shared.shift == pytest.approx(STEP, abs=0.01)


@pytest.mark.parametrize(("change", "status"), [(STEP, "regressed"), (0.0, "ok")])
def test_pairs_tell_whether_the_machine_or_the_program_became_slower(change: float, status: str) -> None:
    values = noise(20)
    values[:, LAST] += STEP
    first, *others = screen_all([(make_series(np.exp(row)), HistoryPolicy(), (), None) for row in values])
    assert first is not None
    assert first.needs_rerun
    assert first.good_night == "000056"
    assert not any(other.shared for other in others if other is not None)
    pairs = make_pairs([change + error for error in 2 * (-0.001, 0.0, 0.001, 0.0005)])
    told = judge_screened(first, ("the night before", pairs))
    assert (judge_screened(first).status, told.status) == ("cannot_tell", status)
    assert "20 series in s changed with it" in told.explanation


@pytest.mark.parametrize(("tonight", "earlier", "found"), [(0.13, 0.0, False), (0.15, 0.0, True), (0.15, 0.08, False)])
def test_one_night_is_a_finding_at_twice_a_jump_and_twice_all_earlier_levels(
    tonight: float, earlier: float, found: bool
) -> None:
    values = noise(20)
    values[:, -1] += tonight
    values[:, 30] += earlier
    assert (explain(values)[1] is not None) is found


@pytest.mark.parametrize(("changed", "found"), [(33, False), (34, True)])
def test_at_least_85_in_a_hundred_series_share_a_level(changed: int, found: bool) -> None:
    values = noise(40)
    values[:changed, LAST] += STEP
    values[changed:, LAST] -= 0.05
    assert (explain(values)[1] is not None) is found


def test_a_spell_as_long_as_one_before_is_no_finding_and_neither_is_what_was_accepted() -> None:
    values = noise(20)
    values[:, LAST] += STEP
    assert explain(values)[1] is not None
    assert explain(values, accepted="000057")[1] is None
    values[:, 30:33] += STEP
    assert explain(values)[1] is None


@pytest.mark.parametrize(("shape", "found"), [("drift", True), ("step", False), ("two steps", False), ("less", False)])
def test_a_drift_is_a_line_and_no_step(shape: str, found: bool) -> None:
    night = np.arange(100)
    shapes = {"drift": 1e-3 * night, "less": 1e-4 * night, "step": 0.06 * (night >= 50)}
    level = shapes | {"two steps": 0.05 * (night >= 33) + 0.05 * (night >= 66)}
    drift = find_drift(noise(1, 100)[0] + level[shape])
    assert (drift is not None) is found
    if drift is not None:
        assert (drift.slope, drift.size) == pytest.approx((1e-3, 0.1), rel=0.2)


@pytest.mark.parametrize("series", [1, 7, 8])
def test_what_drifts_alone_has_a_drift_and_what_all_do_is_shared(series: int) -> None:
    left, shared, drifts = explain(noise(series) + 2e-3 * np.arange(60))
    assert (len(drifts), shared is not None) == ((series, False) if series < 8 else (0, True))
    assert shared is None or shared.slope == pytest.approx(2e-3, rel=0.1)
    assert np.abs(left[1:, -5:].mean(axis=1) - left[1:, :5].mean(axis=1)).max(initial=0) < 0.03


def another_machine(nights: int, since: int, series: int = 40) -> Any:
    answers = np.random.default_rng(5).normal(0.3, 0.06, series)
    values = noise(series, nights)
    values[:, since:] += answers[:, None]
    return values


def screen(values: Any) -> list[ScreenedSeries]:
    return list(filter(None, screen_all([(make_series(np.exp(row)), HistoryPolicy(), (), None) for row in values])))


@pytest.mark.parametrize("slow", [1, 4, 12, 20, 40])
def test_another_machine_is_not_slower_by_the_same_for_all_and_that_is_no_change_of_one(slow: int) -> None:
    verdicts = [judge_screened(one) for one in screen(another_machine(60, 60 - slow))]
    statuses = [verdict.status for verdict in adjust_for_night(verdicts, NightPolicy())]
    assert statuses.count("ok") >= 39  # and the machine's own finding


@pytest.mark.parametrize("slow", [16, 25, 40])
def test_a_change_on_the_other_machine_is_found_among_the_nights_there(slow: int) -> None:
    values = another_machine(60, 60 - slow)
    values[7, LAST] += 0.2
    changed = screen(values)[7]
    assert judge_screened(changed).status == "regressed"
    assert changed.segment.nights[0] == f"{60 - slow:06d}"
    assert max(changed.segment.elsewhere) == f"{59 - slow:06d}"


def test_a_drift_that_began_on_another_machine_is_since_the_first_night_on_this_one() -> None:
    values = another_machine(100, 70)
    values[3] = 0.03 * np.maximum(np.arange(100) - 32, 0) + np.random.default_rng(1).normal(0, 0.1, 100)
    drifting = screen(values)[3]
    assert drifting.drift is not None
    assert drifting.segment.nights[drifting.drift.index] == "000070"
    assert "drifts" in judge_screened(drifting).explanation


def test_far_nights_of_two_other_machines_are_two_groups() -> None:
    level, far = np.array([0.0, 0.9, 0.5, 0.0, 0.51, 0.91]), np.array([False, True, True, False, True, True])
    assert [np.flatnonzero(group).tolist() for group in _find_alike(level, far)] == [[2, 4], [1, 5]]
