"""Bisections of a metric on machines that are not always equally fast: error rates on seeded worlds."""

import re

import numpy as np
import pytest

from nightjar_ci.bisect.search.neighbours import Expected, e_value, median_interval
from nightjar_ci.bisect.search.noise import pair_noise
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Observation, SearchSettings
from tests.bench.bisect.clocks import CHANGE
from tests.bench.bisect.machines import Trial, run_trial
from tests.bench.bisect.worlds import RUNGS
from tests.ci.bisect.search.test_search import IN_PAIRS, drive

ALONE = {1, RUNGS - 1}  # then the luck of that rung's build is all that its side shows, and may be the whole change


def run_all(machine: str, trials: int, change: float = CHANGE) -> list[Trial]:
    return [run_trial(machine, seed, change=change) for seed in range(1000, 1000 + trials)]


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "count"), [("phases", 10), ("loud", 4)])  # bench_bisect has the other machines
def test_no_machine_makes_an_answer_wrong(machine: str, count: int) -> None:
    trials = run_all(machine, count)
    assert [trial.conclusion.message for trial in trials if trial.wrong] == []
    named = [trial.conclusion.probability for trial in trials if trial.conclusion.kind == "culprit"]
    assert all(probability >= 0.99 for probability in named)
    told = [trial.conclusion.kind for trial in trials if not ALONE & {*trial.culprits}]
    assert machine == "loud" or set(told) == {"culprit"}


@pytest.mark.slow
def test_ends_that_are_alike_are_never_given_a_culprit() -> None:
    kinds = {trial.conclusion.kind for trial in run_all("quiet", trials=6, change=0.0)}
    assert kinds <= {"no_change", "too_loud"}


def test_a_machine_too_loud_says_so_and_how_many_pairs_it_would_take() -> None:
    conclusion = run_trial("loud", seed=2).conclusion
    assert conclusion.kind == "too_loud"
    assert "too loud" in conclusion.message
    assert "takes about" in conclusion.message
    assert conclusion.probability < 0.99


@pytest.mark.weekly
def test_a_step_on_a_loud_machine_is_not_said_to_be_a_drift() -> None:
    kinds = [run_trial("loud", seed=seed).conclusion.kind for seed in (2026_000_011, 2026_000_032)]
    assert kinds == ["too_loud", "too_loud"]  # each was called a drift with a probability of 0.995


@pytest.mark.weekly
def test_the_later_of_several_candidates_must_pass_a_stricter_check() -> None:
    trial = run_trial("two machines", seed=2026_000_032)  # 24 instead of 19 where each candidate has 1 % of its own
    assert not trial.wrong


def test_equal_neighbours_pass_the_check_no_more_often_than_it_says() -> None:
    random = np.random.default_rng(5)
    passed = 0
    for _ in range(400):  # noise of two modes, far from what is expected
        differences = random.choice(np.array([-1.0, 1.0]), 40) * random.choice(np.array([0.01, 0.3]), 40)
        noise = pair_noise([np.zeros(1), random.normal(0.1, 0.02, 6)])
        values = [e_value(differences[:n], [0.1], Expected(noise, 0, np.zeros(0))) for n in range(1, 41)]
        passed += max(values) >= 100
    assert passed <= 0.025 * 400  # 1 % is what it promises


@pytest.mark.parametrize("reference", ["first", "last"])
@pytest.mark.parametrize(("better", "sign"), [("lower", 1.0), ("higher", -1.0)])
def test_metrics_that_are_not_positive_are_compared_by_their_difference(
    reference: str, better: str, sign: float
) -> None:
    settings = SearchSettings(
        metric="lower" if better == "lower" else "higher", reference="first" if reference == "first" else "last"
    )
    random = np.random.default_rng(3)
    conclusion = drive(
        Results(20, settings),
        lambda rung: Observation(rung=rung, value=-3.0 + sign * (rung >= 7) + random.normal(0, 0.1)),
    )
    assert (conclusion.kind, conclusion.culprit) == ("culprit", 7)
    assert conclusion.good is not None
    assert conclusion.good.mean == pytest.approx(-3.0, abs=0.2)
    assert not conclusion.effect_is_relative
    assert conclusion.effect == pytest.approx(sign, abs=0.1)


@pytest.mark.parametrize("levels", [(1e9, 1e9 + 1), (5.0, 5e6), (2.0, 2.0001)])
def test_a_metric_without_noise_is_bisected_in_pairs_in_any_unit(levels: tuple[float, float]) -> None:
    conclusion = drive(Results(64, IN_PAIRS), lambda rung: Observation(rung=rung, value=levels[rung >= 20]))
    assert conclusion.culprit == 20


def test_ends_the_wrong_way_round_are_named_in_pairs_too() -> None:
    random = np.random.default_rng(4)
    conclusion = drive(
        Results(20, IN_PAIRS), lambda rung: Observation(rung=rung, value=random.normal(9 if rung else 10, 0.2))
    )
    assert conclusion.kind == "good_end_is_bad"
    assert conclusion.tests <= 15  # eleven that agree are enough


def test_a_gradual_drift_is_said_to_be_one_in_pairs_too() -> None:
    random = np.random.default_rng(10)
    conclusion = drive(
        Results(128, IN_PAIRS),
        lambda rung: Observation(rung=rung, value=(1 + 0.1 * rung / 127) * random.normal(1, 0.002)),
    )
    assert conclusion.kind == "drift"


def test_the_interval_of_a_median_holds_what_it_says() -> None:
    random = np.random.default_rng(6)
    held = [low <= 0 <= high for low, high in (median_interval(random.standard_cauchy(20)) for _ in range(500))]
    assert 0.93 <= np.mean(held) <= 0.995


@pytest.mark.parametrize(("seed", "second"), [(8, (5, 5)), (10, None)])  # both are true: what 5 takes back is a change
def test_a_regression_that_a_later_rung_takes_back_in_part_is_named(seed: int, second: tuple[int, int] | None) -> None:
    random = np.random.default_rng(seed)

    def measure(rung: int) -> Observation:
        level = {4: 8.0, 5: 1.17}.get(rung, 1.0)  # rung 4 is uneven, too: so was typeguard 2.7.0
        return Observation(rung=rung, value=level * np.exp(random.normal(0, 0.3 if rung == 4 else 0.02)))

    conclusion = drive(Results(6, IN_PAIRS), measure)
    assert (conclusion.kind, conclusion.culprits) == ("two_changes" if second else "culprit", (4, 4))
    assert conclusion.second == second
    assert conclusion.tests <= 25  # 56 where the check expects of neighbours what the ends differ by
    if second is not None:
        return
    assert conclusion.effect_interval is not None
    assert conclusion.effect is not None
    assert conclusion.effect_interval[0] <= conclusion.effect <= conclusion.effect_interval[1]
    assert conclusion.effect == pytest.approx(7.0, rel=0.3)
    assert any("another rung takes a part of the change back" in text for text in conclusion.remarks)


def test_pairs_that_do_not_tell_say_how_many_would_at_the_growth_of_their_evidence() -> None:
    random, results = np.random.default_rng(3), Results(4, IN_PAIRS)
    conclusion = drive(
        results, lambda rung: Observation(rung=rung, value=(1.1 if rung >= 2 else 1.0) * np.exp(random.normal(0, 0.1)))
    )
    said = re.fullmatch(r".* 60 pairs do not tell rung 2 .*It would take about (\d+) pairs\.", conclusion.message)
    assert said is not None
    growth, more = results.e_value(2) ** (1 / 60), int(said[1])
    assert growth ** (more - 1) < results.needed_for(2) <= growth**more
