"""The looks at paired differences, against Student's t of SciPy and the trimmed mean written out."""

import math

import numpy as np
import pytest
from scipy import stats

from nightjar_ci.formats.policy import HistoryPolicy, PerformancePolicy
from nightjar_ci.judges.performance.sequential import decide, trimmed_location

POLICY = PerformancePolicy()
NOISY = [0.01, -0.02, 0.015, 0.005, -0.01, 0.03, 0.02, -0.005, 0.012, 0.001, -0.013, 0.007]


def describe(values: list[float]) -> tuple[float, float, int]:
    """Mean, standard error and degrees of freedom after Yuen and Dixon (1973), a tenth cut from each end."""
    ordered, n = sorted(values), len(values)
    cut = n // 10
    inner = ordered[cut : n - cut]
    winsorised = [inner[0]] * cut + inner + [inner[-1]] * cut
    centre = sum(winsorised) / n
    squares = sum((value - centre) ** 2 for value in winsorised)
    return sum(inner) / len(inner), math.sqrt(squares / (len(inner) * (len(inner) - 1))), len(inner) - 1


@pytest.mark.parametrize("count", [3, 4, 9, 10, 12, 19, 20, 31])
def test_the_trimmed_mean_and_its_error_are_those_of_the_paper(count: int) -> None:
    values = list(np.random.default_rng(count).standard_t(2, count))
    location = trimmed_location(np.array(values))
    assert (location.mean, location.error, location.degrees) == pytest.approx(describe(values))


def test_one_wild_value_of_ten_is_cut_and_of_nine_is_not() -> None:
    wild = [*NOISY[:9], 50.0]
    assert trimmed_location(np.array(wild)).mean < 0.1
    assert trimmed_location(np.array(wild[1:])).mean > 5


@pytest.mark.parametrize("shift", [-0.05, 0.0, 0.01, 0.05])
def test_the_numbers_of_a_decision_are_those_of_students_t(shift: float) -> None:
    values = [value + shift for value in NOISY]
    decision = decide(values, POLICY)
    assert decision is not None
    mean, error, degrees = describe(values[: decision.pairs])
    t = stats.t(degrees)
    half = t.isf(0.05 / 2 / 3) * error  # 5 % for three looks together
    assert (decision.mean, decision.low, decision.high) == pytest.approx((mean, mean - half, mean + half))
    assert decision.p == pytest.approx(min(1.0, 3 * 2 * t.sf(abs(mean) / error)))
    number = POLICY.looks.index(decision.pairs)
    assert decision.upper == pytest.approx(mean + t.isf(POLICY.ok_alphas[number]) * error)


def make_pairs(p: float, mean: float, count: int) -> list[float]:
    values = np.random.default_rng(1).normal(0, 1, count)
    _, error, degrees = describe(list(values))
    values -= describe(list(values))[0]
    return list(mean + values * (mean / float(stats.t(degrees).isf(p)) / error))


@pytest.mark.parametrize(("look", "alpha"), [*zip(POLICY.looks, POLICY.alphas, strict=True)])
@pytest.mark.parametrize(("sign", "status"), [(1, "regressed"), (-1, "improved")])
def test_each_look_spends_its_own_alpha(look: int, alpha: float, sign: int, status: str) -> None:
    policy = PerformancePolicy(looks=(look,), alphas=(alpha,), ok_alphas=(1e-6,))
    sure, unsure = (
        decide([sign * value for value in make_pairs(p, 0.1, look)], policy) for p in (0.99 * alpha, 1.01 * alpha)
    )
    assert sure is not None
    assert unsure is not None
    assert (sure.status, unsure.status) == (status, "cannot_tell")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_below_the_floor_is_none_however_sure(sign: int) -> None:
    changes = {size: decide([sign * (size + n * 1e-7) for n in range(4)], POLICY) for size in (0.0029, 0.0031)}
    statuses = {size: decision.status for size, decision in changes.items() if decision is not None}
    assert statuses == {0.0029: "ok", 0.0031: "regressed" if sign > 0 else "improved"}


def test_a_look_is_taken_with_exactly_its_number_of_pairs() -> None:
    loud = [0.5, -0.5, 0.4, -0.4, 0.3, -0.3, 0.2, -0.2, 0.1, -0.1, 0.3, -0.2]
    pairs = {count: decide(loud[:count], POLICY) for count in (3, 4, 7, 8, 11, 12)}
    assert pairs.pop(3) is None
    assert {count: decision.pairs for count, decision in pairs.items() if decision is not None} == {
        4: 4, 7: 4, 8: 8, 11: 8, 12: 12
    }  # fmt: skip


def test_the_first_look_that_decides_is_the_last() -> None:
    decision = decide([0.1, 0.101, 0.099, 0.1, *[-5.0] * 8], POLICY)
    assert decision is not None
    assert (decision.status, decision.pairs) == ("regressed", 4)


def test_a_doubt_of_a_history_ends_where_pairs_make_a_slowdown_unlikely() -> None:
    doubts = HistoryPolicy().doubts
    looks = HistoryPolicy().looks
    policy = HistoryPolicy(looks=looks[:1], alphas=HistoryPolicy().alphas[:1], doubts=doubts[:1])
    statuses = [
        decision.status
        for p in (doubts[0] * 0.99, doubts[0] * 1.01)
        if (decision := decide(make_pairs(p, 0.01, looks[0]), policy)) is not None
    ]
    assert statuses == ["cannot_tell", "ok"]


def test_pairs_without_any_difference_have_no_p_below_one() -> None:
    decision = decide([0.0] * 4, POLICY)
    assert decision is not None
    assert (decision.status, decision.p, decision.low, decision.high) == ("ok", 1.0, 0.0, 0.0)
