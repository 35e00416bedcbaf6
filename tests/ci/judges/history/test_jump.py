"""Large changes without pairs: found on the third night in any number of series, and never seen in noise."""

import numpy as np
import numpy.typing as npt
import pytest

from nightjar_ci.formats.policy import HistoryPolicy, NightPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.history.last_nights import REFERENCE, find_jump
from tests.bench.gate.jumps import draw
from tests.ci.judges.judged import judge_history, make_series
from tests.ci.judges.test_doors import tell

Array = npt.NDArray[np.float64]
POLICY = HistoryPolicy()
LEAST, FLOOR = float(np.log1p(POLICY.jump)), float(np.log1p(POLICY.floor))


def make(values: Array, place: int = 0, policy: HistoryPolicy = POLICY) -> Series:
    return make_series(np.exp(values) if policy.scale == "log" else values, f"cell-{place}/step_time")


def play_nights(values: Array, first: int) -> list[list[Verdict]]:
    """The verdicts of each night from `first` on, weighed together, each judged with what stood before; no pairs."""
    earlier: dict[int, Verdict] = {}
    played = []
    for night in range(first, values.shape[1]):
        verdicts = []
        for place, row in enumerate(values):
            verdict = judge_history(make(row[: night + 1], place), POLICY, earlier=earlier.get(place))
            assert verdict is not None
            verdicts.append(verdict)
        verdicts = adjust_for_night(verdicts, NightPolicy())
        earlier = dict(enumerate(verdicts))
        played.append(verdicts)
    return played


@pytest.mark.slow
def test_one_of_500_series_that_is_three_times_slower_is_never_ok_and_red_on_its_third_night() -> None:
    values = np.random.default_rng(0).normal(0, 0.01, (500, 64))
    values[0, 60:] += np.log(3)
    told = [verdicts[0].status for verdicts in play_nights(values, 60)]
    assert told == ["cannot_tell", "cannot_tell", "regressed", "regressed"]


@pytest.mark.slow
def test_42_of_500_series_that_are_30_percent_slower_are_all_red_on_their_third_night() -> None:
    values = np.random.default_rng(1).normal(0, 0.01, (500, 63))
    values[:42, 60:] += np.log(1.3)
    *doubts, red = ([verdict.status for verdict in verdicts] for verdicts in play_nights(values, 60))
    assert all(set(told[:42]) == {"cannot_tell"} for told in doubts)
    assert set(red[:42]) == {"regressed"}
    assert "regressed" not in red[42:]


@pytest.mark.parametrize(
    ("nights", "sd", "size", "share"),
    [(12, 0.01, 3.0, 1.0), (12, 0.03, 3.0, 1.0), (12, 0.01, 1.1, 0.9), (20, 0.01, 1.1, 0.95), (40, 0.03, 1.3, 0.95)],
)
def test_three_nights_suffice_for_ten_times_the_noise(nights: int, sd: float, size: float, share: float) -> None:
    values = np.random.default_rng(2).normal(0, sd, (2000, nights + 3))
    values[:, nights:] += np.log(size)
    assert (find_jump(values, LEAST, FLOOR, POLICY.min_nights).nights == 3).mean() >= share


@pytest.mark.parametrize("noise", ["heavy tails", "AR(1)", "bimodal", "spikes"])
def test_noise_is_a_jump_on_at_most_one_in_a_thousand_nights_of_500_series(noise: str) -> None:
    rng = np.random.default_rng(4)
    jumps = judged = 0
    for nights in (15, 20, 40, 60):  # each series is judged on one night of its own
        values = draw(noise, 60_000, nights, rng)
        likely = values[:, -3:].min(axis=1) - np.median(values[:, :-3], axis=1) > 0.9 * LEAST  # the others cannot jump
        jumps += int((find_jump(values[likely], LEAST, FLOOR, POLICY.min_nights).nights > 0).sum())
        judged += len(values)
    assert jumps <= 3  # 0.48 are expected at the stated rate; P(> 3) = 0.2 %


def test_a_single_slow_night_is_a_doubt_and_ends_with_the_next() -> None:
    values = np.random.default_rng(5).normal(0, 0.01, (20, 63))
    values[0, 60] += np.log(5)
    assert [verdicts[0].status for verdicts in play_nights(values, 60)] == ["cannot_tell", "ok", "ok"]


@pytest.mark.parametrize(
    ("last", "slower", "earlier", "status"),
    [
        ("BAB", (1.2, 1.2, 1.2), 24, "regressed"),
        ("BAB", (1.0, 1.2, 1.2), 24, "cannot_tell"),  # two nights
        ("BAB", (1.2, 1.0, 1.2), 24, "cannot_tell"),  # slow on one of the machines
        ("BAC", (1.2, 1.2, 1.2), 24, "cannot_tell"),  # the third one is new
        ("BAL", (1.2, 1.2, 1.2), 24, "ok"),  # 20 % is nothing on a loud one
        ("ALA", (1.2, 1.2, 1.2), 24, "cannot_tell"),
        ("BAB", (0.8, 0.8, 0.8), 24, "ok"),
        ("BAB", (1.2, 1.2, 1.2), 9, "cannot_tell"),
    ],
)
def test_nights_of_other_machines_count_by_their_own_usual_value(
    last: str, slower: tuple[float, ...], earlier: int, status: str
) -> None:
    usual, noise = {"A": 1.0, "B": 3.0, "C": 0.2, "L": 1.0}, {"L": 0.2}
    machines = [*"ABL" * earlier, *last]
    rng = np.random.default_rng(8)
    values = [usual[machine] * np.exp(rng.normal(0, noise.get(machine, 0.01))) for machine in machines]
    values[-3:] = [usual[machine] * size for machine, size in zip(last, slower, strict=True)]
    verdict = judge_history(make_series(values, machines=machines), POLICY)
    assert verdict is not None
    assert verdict.status == status


def test_an_accepted_change_begins_the_history_of_every_machine() -> None:
    machines = [*"AB" * 40, *"BAB"]
    values = np.where(np.arange(83) < 40, 1.0, 1.2) * np.random.default_rng(9).normal(1, 0.01, 83)
    values[-3:] = 1.4
    verdict = judge_history(make_series(values, machines=machines), POLICY, accepted=["000040"])
    assert verdict is not None
    assert (verdict.status, verdict.policy["since"], verdict.policy["good_night"]) == ("regressed", "000080", "000079")


def test_a_gain_is_no_jump() -> None:
    values = np.random.default_rng(6).normal(0, 0.01, 63)
    values[60:] -= np.log(3)
    assert tell(values).status == "ok"


def test_a_constant_measure_that_rises_jumps_and_a_rise_below_the_policys_does_not() -> None:
    rises = (tell(np.log([*[1.0] * 20, *[size] * 3])) for size in (1.2, 1.05))
    assert [verdict.status for verdict in rises] == ["regressed", "cannot_tell"]


def test_differences_jump_where_the_scale_is_linear() -> None:
    policy = HistoryPolicy(scale="linear", floor=0.0)
    values = np.random.default_rng(7).normal(-4, 1, 43)
    values[40:] += 20
    verdict = judge_history(make(values, policy=policy), policy)
    assert verdict is not None
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(20, abs=2)


@pytest.mark.parametrize(("nights", "length"), [((1.0, 1.2, 1.1), 3), ((1.0, 1.4, 1.2), 0)])
def test_nights_that_differ_by_more_than_a_quarter_of_the_jump_are_none(nights: tuple[float, ...], length: int) -> None:
    values = np.concatenate([np.random.default_rng(3).normal(0, 0.01, 60), nights])
    assert find_jump(values, LEAST, FLOOR, POLICY.min_nights).nights == length


@pytest.mark.parametrize(("nights", "counts"), [(REFERENCE // 2, True), (2 * REFERENCE, False)])
def test_half_a_year_of_nights_says_what_is_usual(nights: int, counts: bool) -> None:
    values = np.random.default_rng(2).normal(0, 0.01, nights)
    values[-3:] += 1
    loud = values.copy()
    loud[: nights // 3] += np.tile([3.0, -3.0], nights)[: nights // 3]
    alone, beside = (find_jump(one, LEAST, FLOOR, POLICY.min_nights) for one in (values, loud))
    assert (int(alone.nights), float(alone.p) < 1e-4) == (3, True)
    assert (float(beside.p) > float(alone.p)) == counts
