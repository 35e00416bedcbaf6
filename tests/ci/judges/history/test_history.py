import math
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.change_points import LEAST, average_ranks, find_changes
from nightjar_ci.judges.history.last_nights import LONGEST, screen_last_nights
from nightjar_ci.judges.history.rank_sum import find_shift, rank_sum_p
from nightjar_ci.judges.history.screening import screen_segments
from nightjar_ci.judges.history.segment import current_segment
from nightjar_ci.judges.performance.performance import Pair
from tests.ci.judges.judged import judge_history, make_series
from tests.ci.nights import CELL, record

Array = npt.NDArray[np.float64]
POLICY = HistoryPolicy()


def series(
    values: Sequence[float] | Array, *, environments: Sequence[str] | None = None, better: str = "lower"
) -> Series:
    return make_series(values, f"{CELL}/step_time", better=better, machines=environments or ())


def quiet(count: int, seed: int = 0, sd: float = 0.01) -> Array:
    return 0.2 * np.exp(np.random.default_rng(seed).normal(0, sd, count))


def judge(one: Series, policy: HistoryPolicy = POLICY, **options: object) -> Verdict:
    verdict = judge_history(one, policy, **options)  # type: ignore[arg-type]
    assert verdict is not None
    return verdict


def stepped(count: int, at: int, size: float, seed: int = 0) -> Array:
    values = quiet(count, seed)
    values[at:] *= 1 + size
    return values


def test_a_lasting_step_is_named_with_its_night_and_size() -> None:
    one = series(stepped(80, 60, 0.05))
    verdict = judge(one)
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.interval is not None
    assert one.nights[60] in verdict.explanation
    assert verdict.effect.value == pytest.approx(0.05, abs=0.01)
    assert verdict.interval[0] < 0.05 < verdict.interval[1]


@pytest.mark.parametrize("nights", [6, 8, 10])
def test_a_step_of_a_few_nights_is_dated_by_the_first_of_them(nights: int) -> None:
    one = series(stepped(60 + nights, 60, 0.05))
    verdict = judge(one)
    assert verdict.status == "regressed"
    assert f"is worse since night {one.nights[60]}, for {nights} nights" in verdict.explanation
    assert verdict.policy["since"] == one.nights[60]
    assert verdict.policy["good_night"] == one.nights[59]


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_interval_of_a_step_starts_with_its_smaller_end(better: str) -> None:
    values = stepped(80, 60, 0.3)
    if better == "higher":
        values = 1 / values
    verdict = judge(series(values, better=better))
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.interval is not None
    assert verdict.interval[0] < verdict.effect.value < verdict.interval[1]
    assert "for 20 nights: " in verdict.explanation


@pytest.mark.parametrize(("short", "level"), [(0, 60), (1, 0)])
def test_nights_before_a_step_are_no_reference_once_as_many_as_a_history_needs_lie_behind_the_last(
    short: int, level: int
) -> None:
    values = stepped(60 + POLICY.min_nights + LONGEST - short, 60, 0.3)
    (screening,) = screen_segments([current_segment(series(values), POLICY)])
    assert screening is not None
    assert screening.level == level


def test_a_lasting_gain_is_an_improvement() -> None:
    assert judge(series(stepped(80, 60, -0.05))).status == "improved"


def test_lower_throughput_is_a_regression_with_a_negative_effect() -> None:
    verdict = judge(series(1 / stepped(80, 60, 0.05), better="higher"))
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(-0.05, abs=0.01)


def test_one_night_far_above_all_others_is_a_doubt_that_says_what_to_do() -> None:
    verdict = judge(series(stepped(80, 79, 0.07)))
    assert verdict.status == "cannot_tell"
    assert "confirm it by paired re-runs against night" in verdict.explanation
    assert verdict.p is not None
    assert verdict.p < 1e-4


def test_after_a_lasting_gain_a_loss_back_to_the_old_level_is_a_doubt() -> None:
    values = stepped(80, 40, -0.10)
    values[-1] *= 1.08
    assert judge(series(values), rerun=rerun(0.08, 8)).status == "regressed"


def test_another_gpu_is_a_history_of_its_own_and_no_regression() -> None:
    verdict = judge(series(stepped(80, 60, 0.5), environments=["a100"] * 60 + ["h100"] * 20))
    assert verdict.status == "ok"
    assert verdict.details == ("compared with 20 nights on the same machine; 60 on others have their own history",)


@pytest.mark.parametrize("share", [0.07, 0.5])
def test_a_pool_of_two_kinds_of_runners_hides_no_step(share: float) -> None:
    other = np.random.default_rng(1).random(200) < share
    values = stepped(200, 100, 2.0) * np.where(other, 1.3, 1.0)
    kinds = np.where(other, "slow", "fast").tolist()
    told: list[tuple[str, str]] = []
    earlier: dict[str, Verdict] = {}
    for night in range(60, 200):
        one = series(values[: night + 1], environments=kinds[: night + 1])
        verdict = judge_history(one, POLICY, earlier=earlier.get(kinds[night]))
        if verdict is not None:
            earlier[kinds[night]] = verdict
        told.append((kinds[night], "" if verdict is None else verdict.status))
    assert "regressed" not in {status for _, status in told[:40]}
    assert [status for _, status in told[40:42]] == ["cannot_tell"] * 2
    slow = "cannot_tell" if share < 0.1 else "regressed"  # as long as it has too few nights of its own
    assert set(told[42:]) == {("fast", "regressed"), ("slow", slow)}


def test_an_accepted_change_starts_anew() -> None:
    one = series(stepped(80, 60, 0.05))
    assert judge(one, accepted=[one.nights[60]]).status == "ok"
    assert "was accepted" in judge(one, accepted=[one.nights[60]]).details[0]
    assert judge(one, accepted=[one.nights[10]]).status == "regressed"


@pytest.mark.parametrize("values", [[0.2] * 10, [*quiet(60), math.nan], []])
def test_a_short_history_or_a_night_without_a_value_is_not_judged(values: Sequence[float]) -> None:
    assert judge_history(series(values), POLICY) is None


def test_nights_without_a_value_are_left_out() -> None:
    values = stepped(80, 60, 0.05)
    values[[3, 30, 61]] = math.nan
    assert judge(series(values)).status == "regressed"


def test_a_metric_that_may_be_negative_is_judged_by_differences() -> None:
    values = np.random.default_rng(0).normal(0, 1, 80)
    values[60:] += 5
    verdict = judge(series(values), HistoryPolicy(scale="linear", floor=0.0))
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(5, abs=1)


def test_a_constant_measure_is_ok_and_its_first_rise_is_a_doubt() -> None:
    assert judge(series([0.2] * 80)).status == "ok"
    assert judge(series([*[0.2] * 79, 0.21])).status == "cannot_tell"


def rerun(change: float, pairs: int, sd: float = 0.003) -> tuple[str, list[Pair]]:
    rng = np.random.default_rng(1)

    def run(factor: float) -> object:
        return record(step_times=(9.0, *[0.05 * factor * math.exp(rng.normal(0, sd))] * 3))

    made = [Pair(number=n, candidate=run(1 + change), reference=run(1.0)) for n in range(1, pairs + 1)]  # type: ignore[arg-type]
    return ("uv:jax==0.10.1", made)


def test_pairs_that_show_the_change_make_it_a_regression() -> None:
    verdict = judge(series(stepped(80, 79, 0.05)), rerun=rerun(0.05, 8))
    assert verdict.status == "regressed"
    assert verdict.policy["reference"] == "uv:jax==0.10.1"
    assert "against uv:jax==0.10.1 after 8 interleaved pairs" in verdict.explanation


def test_pairs_that_show_nothing_end_a_doubt() -> None:
    verdict = judge(series(stepped(80, 79, 0.05)), rerun=rerun(-0.001, 4))
    assert verdict.status == "ok"
    assert verdict.explanation.startswith("History suggested a regression; paired re-runs do not confirm it")


def test_too_few_pairs_leave_the_doubt() -> None:
    assert judge(series(stepped(80, 79, 0.05)), rerun=rerun(0.05, 3)).status == "cannot_tell"


def play_standing(size: float, sd: float, mended: bool, seed: int) -> list[Verdict]:
    """The verdicts of twenty nights after a confirmed regression, each judged with the one before; no pairs."""
    rng = np.random.default_rng([11, seed])
    values = 0.2 * np.exp(rng.normal(0, sd, 101))
    values[80:] *= 1 + size
    values[81:] /= 1 + (size if mended else 0)
    pairs = [
        Pair(number=n, candidate=record(0, step_times=(9, 1 + size)), reference=record(0, step_times=(9, 1.0)))
        for n in range(8)
    ]
    nights = [values[: 81 + night] for night in range(21)]
    values[80] *= 1.2  # seen at once
    verdict = judge(series(nights[0]), rerun=("uv:jax==1", pairs))
    assert verdict.status == "regressed"
    found = [verdict]
    for night in nights[1:]:
        found.append(judge(series(night), earlier=found[-1]))
    return found[1:]


@pytest.mark.slow
def test_a_regression_is_taken_back_while_it_stays_on_fewer_than_one_series_in_thirty() -> None:
    played = [play_standing(0.03, 0.03, mended=False, seed=seed) for seed in range(30)]  # bench_gate has quieter noise
    statuses = [{verdict.status for verdict in found} for found in played]
    assert sum("ok" in found or "improved" in found for found in statuses) <= 1


def test_a_mended_regression_ends_within_ten_nights_without_pairs() -> None:
    played = [play_standing(0.05, 0.01, mended=True, seed=seed) for seed in range(30)]
    assert sum("regressed" not in [verdict.status for verdict in found[9:]] for found in played) >= 28
    said = {verdict.explanation.partition(":")[0] for found in played for verdict in found[5:] if verdict.p is None}
    assert {text.rpartition(" and ")[2] for text in said} == {"looks recovered"}


@pytest.mark.parametrize("seed", range(4))
def test_a_change_that_was_undone_is_not_found_again(seed: int) -> None:
    values = stepped(100, 60, 0.1, seed)
    values[72:] /= 1.1
    assert judge(series(values[:72])).status == "regressed"
    assert "regressed" not in [judge(series(values[:nights])).status for nights in range(77, 100)]


@pytest.mark.parametrize("before", ["faster", "drift"])
def test_what_began_earlier_does_not_hide_nights_that_stand_out(before: str) -> None:
    values = quiet(90)
    if before == "faster":
        values[65:] *= 0.8
    else:
        values *= np.exp(0.0004 * np.arange(90))
    assert judge(series(values)).status in ("ok", "improved")
    values[-1] *= 3
    verdict = judge(series(values))
    assert verdict.status == "cannot_tell"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(2.0, abs=0.1)


def test_a_regression_does_not_follow_to_another_machine() -> None:
    machines = [*["a"] * 85, *["b"] * 20]
    values = stepped(105, 80, 0.1)
    origin = {"since": series(values).nights[80], "good_night": series(values).nights[79]}
    before = judge(series(values[:85], environments=machines[:85]))
    earlier = before.model_copy(update={"status": "regressed", "policy": origin})
    there = judge(series(values[:85], environments=machines[:85]), earlier=earlier)
    assert (there.status, "and stays so" in there.explanation) == ("regressed", True)
    assert judge(series(values, environments=machines), earlier=earlier).status == "ok"


def test_tonight_is_compared_with_a_night_before_a_step_that_was_missed_at_first() -> None:
    one = series(stepped(80, 76, 0.03))
    assert f"against night {one.nights[69]}" in judge(one).explanation


def test_equal_values_are_no_evidence() -> None:
    assert rank_sum_p(np.ones(5), np.ones(60)) == 1.0


@given(arrays(np.float64, 40, elements=st.floats(-1e3, 1e3)), st.randoms(use_true_random=False))
def test_the_order_of_the_nights_before_the_last_five_does_not_matter(values: Array, random: Random) -> None:
    before = list(values[:-5])
    random.shuffle(before)
    shuffled = np.array([*before, *values[-5:]])
    assert float(screen_last_nights(shuffled, 60).p) == pytest.approx(float(screen_last_nights(values, 60).p))


@given(arrays(np.float64, (3, 30), elements=st.floats(-1e3, 1e3)))
def test_several_series_at_once_are_judged_like_each_alone(values: Array) -> None:
    together = screen_last_nights(values, 20).p
    assert together == pytest.approx([float(screen_last_nights(one, 20).p) for one in values])


@pytest.mark.parametrize("noise", ["normal", "outliers", "two modes"])
def test_an_unchanged_series_is_suspicious_at_most_at_the_stated_rate(noise: str) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0, 0.01, (20_000, 66))
    if noise == "outliers":
        values += (rng.random(values.shape) < 0.03) * rng.uniform(0.1, 0.5, values.shape)
    if noise == "two modes":
        values += 0.04 * (rng.random(values.shape) < 0.3)
    assert (screen_last_nights(values, 60).p <= POLICY.trigger).mean() <= POLICY.trigger


def test_outliers_two_modes_and_a_drift_are_no_change_points() -> None:
    rng = np.random.default_rng(6)
    count, length, found = 60, 240, 0
    for _ in range(count):
        noise = rng.normal(0, 0.01, (4, length))
        noise[1] += (rng.random(length) < 0.03) * rng.uniform(0.1, 0.5, length)
        noise[2] += 0.04 * (rng.random(length) < 0.3)
        noise[3] += 1e-4 * np.arange(length)
        found += sum(len(find_changes(one)) for one in noise)
    assert found <= 0.2e-3 * 4 * count * length + 3 * (0.2e-3 * 4 * count * length) ** 0.5  # the promise, and 3 sigma


def test_two_changes_are_placed_within_two_nights() -> None:
    values = np.random.default_rng(2).normal(0, 0.01, 300)
    values[100:] += 0.05
    values[200:] -= 0.08
    assert [round(change.index, -1) for change in find_changes(values)] == [100, 200]
    assert all(abs(change.index - at) <= 2 for change, at in zip(find_changes(values), (100, 200), strict=True))


@pytest.mark.parametrize("seed", [21, 38, 50, 72])  # of 400, 18 were called worse or better with an interval about 0
def test_a_change_whose_interval_does_not_tell_its_sign_is_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = 0.2 * np.exp(rng.normal(0, 0.01, 150) + np.repeat(rng.normal(0, 0.04, 6), 25))
    assert judge(series(values)).status not in ("regressed", "improved")


def test_the_interval_of_a_shift_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    noise = np.exp(rng.normal(0, 1, (2000, 30)))  # skewed
    hits = [low <= 0.5 <= high for row in noise for _, low, high in [find_shift(row[:10] + 0.5, row[10:])]]
    assert np.mean(hits) >= 0.94


@given(arrays(np.float64, (2, 12), elements=st.integers(0, 4).map(float)))
def test_ranks_of_equal_values_are_shared(values: Array) -> None:
    from scipy.stats import rankdata

    assert average_ranks(values) + 1 == pytest.approx(rankdata(values, axis=1))


@pytest.mark.parametrize(("before", "after", "indices"), [(LEAST, LEAST, [LEAST]), (LEAST - 1, LEAST, [])])
def test_a_change_has_eight_nights_on_either_side(before: int, after: int, indices: list[int]) -> None:
    values = np.random.default_rng(0).normal(0, 0.01, before + after)
    values[before:] += 1
    changes = find_changes(values, 3.0)  # two times eight nights, all of the one above all of the other, are at 3.36
    assert [change.index for change in changes] == indices
