import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from nightjar_ci.baselines.baseline import ConvergenceBaseline, make_convergence
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.envelope import block_means, find_change, find_envelope
from nightjar_ci.judges.convergence.equality import judge_equality
from nightjar_ci.judges.student_t import t_quantile
from tests.ci.nights import CELL, STEPS, baseline, losses, record

POLICY = ConvergencePolicy()
OTHER = "another kind"  # of device: numerics may change, so that the later rules are asked


def judge(
    runs: Sequence[RunRecord], known: ConvergenceBaseline | None = None, policy: ConvergencePolicy = POLICY
) -> Verdict:
    return judge_convergence(CELL, "loss", runs, baseline() if known is None else known, policy)


def changed(seed: int, factor: npt.ArrayLike, **changes: object) -> RunRecord:
    values = np.array(losses(seed)) * np.array(factor)
    return record(seed, values=[float(value) for value in values], **changes)  # type: ignore[arg-type]


def test_the_same_program_is_ok() -> None:
    verdict = judge([record(seed) for seed in range(3)])
    assert verdict.status == "ok"
    assert verdict.explanation.startswith("3 seeds reproduce the baseline's curves")
    assert verdict.runs == (f"{CELL}-s0", f"{CELL}-s1", f"{CELL}-s2")


def test_a_curve_of_every_fifth_step_has_as_many_values_as_were_logged() -> None:
    logged = range(0, 5 * len(losses(0)), 5)
    runs = [record(seed, steps=logged) for seed in range(10)]
    verdict = judge(runs[:3], make_convergence(CELL, ("train",), runs))
    assert f" over {len(logged)} values (up to step {logged[-1]})," in verdict.explanation


def test_a_nan_is_named_with_seed_and_step() -> None:
    verdict = judge([record(0), record(1, values=[*losses(1)[:17], *[math.nan] * (STEPS - 17)])])
    assert verdict.status == "regressed"
    assert verdict.explanation == "The loss of seed 1 is NaN from step 17 on."


def test_a_diverged_training_is_a_regression_even_without_a_baseline() -> None:
    run = record(2, values=losses(2)[:40], status="diverged")
    verdict = judge_convergence(CELL, "loss", [run], None, POLICY)
    assert verdict.status == "regressed"
    assert verdict.explanation == "The training of seed 2 diverged after step 39."


def in_unit(run: RunRecord, unit: str) -> RunRecord:
    return run.model_copy(update={"curves": (run.curves[0].model_copy(update={"unit": unit}),)})


@pytest.mark.parametrize(
    ("runs", "status", "said"),
    [
        ([record(0, name="other")], "regressed", "has no curve 'loss'"),
        ([record(0, values=losses(0, 150))], "cannot_tell", "not the same training"),
        ([record(0, config={"data_digest": "d2"})], "cannot_tell", "digest d2 instead of d1"),
        ([in_unit(record(0), "bits/token"), record(1)], "cannot_tell", "bits/token (lower is better) and nats/token"),
    ],
)
def test_a_curve_that_vanished_is_worse_and_one_of_another_length_data_or_unit_is_not_compared(
    runs: list[RunRecord], status: str, said: str
) -> None:
    verdict = judge(runs)
    assert verdict.status == status
    assert said in verdict.explanation


def test_without_a_baseline_it_cannot_tell_and_says_how_to_make_one() -> None:
    verdict = judge_convergence(CELL, "loss", [record(0)], None, POLICY)
    assert verdict.status == "cannot_tell"
    assert "nightjar-ci baseline" in verdict.explanation


def test_a_departure_of_a_thousandth_in_the_first_steps_is_a_regression_where_the_environment_is_the_same() -> None:
    drift = 1 + 1e-3 * (np.arange(STEPS) >= 2)
    verdict = judge([changed(seed, drift, config={"learning_rate": 0.006}) for seed in range(3)])
    assert verdict.status == "regressed"
    assert "leaves the baseline's same-seed curve at step 2 (seeds 0, 1, 2" in verdict.explanation
    assert "config learning_rate: 0.003 -> 0.006" in verdict.details


def test_the_same_departure_on_another_device_is_evidence_only() -> None:
    drift = 1 + 1e-3 * (np.arange(STEPS) >= 2)
    verdict = judge([changed(seed, drift, device=OTHER) for seed in range(3)])
    assert verdict.status == "ok"
    assert verdict.interval is not None
    assert verdict.interval[0] <= 1e-3 <= verdict.interval[1] + 1e-9
    assert any("the envelope decides" in line for line in verdict.details)


def test_an_evaluation_at_the_end_has_no_early_steps() -> None:
    runs = [record(seed, values=[losses(seed)[-1]], steps=[300], name="eval_loss") for seed in range(10)]
    known = make_convergence(CELL, ("train",), runs)
    later = [record(s, values=[losses(s)[-1] * 1.001], steps=[300], name="eval_loss") for s in range(3)]
    assert judge_convergence(CELL, "eval_loss", later, known, POLICY).status == "ok"


def test_rounding_below_the_tolerance_is_no_departure() -> None:
    noise = 1 + 1e-5 * np.sin(np.arange(STEPS))
    assert judge([changed(seed, noise) for seed in range(3)]).status == "ok"


def test_rounding_that_grows_after_the_early_steps_is_ok_even_with_one_seed() -> None:
    growing = 1 + 0.01 * np.sin(np.arange(STEPS)) * (np.arange(STEPS) >= 40)
    verdict = judge([changed(0, growing)], policy=ConvergencePolicy(margin=0.001))
    assert verdict.status == "ok"
    assert "1 seed equals the baseline's same seed for 25 steps, up to step 24, within 0.0001" in verdict.explanation
    assert "Later steps are compared with other seeds only" in verdict.explanation
    assert verdict.policy["tested_rtol"] == pytest.approx(1e-4, rel=1e-3)  # the ledger's smallest change


def test_a_departure_after_the_early_steps_is_found_by_the_envelope() -> None:
    late = np.where(np.arange(STEPS) < 60, 1.0, 1.3)
    assert judge([changed(seed, late) for seed in range(3)]).status == "regressed"


def test_a_worse_end_on_another_device_is_a_regression() -> None:
    worse = np.exp(np.linspace(0, 0.12, STEPS))
    verdict = judge([changed(seed, worse, device=OTHER) for seed in range(3)])
    assert verdict.status == "regressed"
    assert "worse" in verdict.explanation


def test_one_seed_that_lags_leaves_the_envelope() -> None:
    runs = [record(0, device=OTHER), record(1, device=OTHER), changed(2, 1.3, device=OTHER)]
    verdict = judge(runs)
    assert verdict.status == "regressed"
    assert "(seed 2; +" in verdict.explanation


def test_a_better_end_is_an_improvement_and_a_far_better_one_is_suspicious() -> None:
    better = judge([changed(seed, np.exp(np.linspace(0, -0.06, STEPS)), device=OTHER) for seed in range(3)])
    assert better.status == "improved"
    leaked = judge([changed(seed, np.exp(np.linspace(0, -0.7, STEPS)), device=OTHER) for seed in range(3)])
    assert leaked.status == "regressed"
    assert "too good to be true" in leaked.explanation


def test_fewer_than_ten_baseline_seeds_give_no_envelope() -> None:
    known = baseline()
    few = {seed: known.curves[0].seeds[seed] for seed in range(5)}
    known = known.model_copy(update={"curves": (known.curves[0].model_copy(update={"seeds": few}),)})
    verdict = judge([changed(0, 1.01, device=OTHER)], known)
    assert verdict.status == "cannot_tell"
    assert "5 seeds, an envelope needs 10" in verdict.explanation


def test_one_noisy_seed_cannot_rule_out_the_margin() -> None:
    verdict = judge([record(77, device=OTHER)], policy=ConvergencePolicy(margin=0.001))
    assert verdict.status == "cannot_tell"
    assert "run more seeds" in verdict.explanation


def test_accuracy_is_better_when_higher_and_compared_by_difference() -> None:
    policy = ConvergencePolicy(curve="accuracy", scale="linear", margin=0.02, too_good=0.3)

    def accuracies(seed: int, shift: float = 0.0) -> list[float]:
        rng = np.random.default_rng(seed)
        rise = 0.9 * (1 - np.exp(-np.arange(STEPS) / 20)) + shift * np.arange(STEPS) / STEPS
        return [float(value) for value in rise + rng.normal(0, 0.005, STEPS)]

    runs = [record(seed, values=accuracies(seed), name="accuracy", better="higher") for seed in range(10)]
    known = make_convergence(CELL, ("train",), runs)
    worse = [record(s, values=accuracies(s, -0.1), name="accuracy", better="higher", device=OTHER) for s in range(3)]
    better = [record(s, values=accuracies(s, 0.05), name="accuracy", better="higher", device=OTHER) for s in range(3)]
    assert judge_convergence(CELL, "accuracy", worse, known, policy).status == "regressed"
    assert judge_convergence(CELL, "accuracy", better, known, policy).status == "improved"


def test_one_wrong_answer_beside_seeds_that_make_none_is_no_worse_accuracy() -> None:
    policy = ConvergencePolicy(curve="accuracy", scale="linear", margin=0.05, too_good=0.3)
    rise = np.minimum(1.0, np.arange(STEPS) / 20)

    def run(seed: int, wrong: float, device: str = "cpu") -> RunRecord:
        values = (rise - wrong * (np.arange(STEPS) > STEPS - 9)).tolist()
        return record(seed, values=values, name="accuracy", better="higher", device=device)

    known = make_convergence(CELL, ("train",), [run(seed, 0) for seed in range(10)])
    statuses = [
        judge_convergence(CELL, "accuracy", [run(seed, wrong, OTHER) for seed in range(3)], known, policy).status
        for wrong in (1 / 256, 0.2)
    ]
    assert statuses == ["ok", "regressed"]


def test_a_curve_that_leaves_its_envelope_has_a_probability_for_the_night() -> None:
    rng, p = np.random.default_rng(9), []
    for _ in range(400):
        old, new = simulate(rng, (10, 60), 0.01, 0.02, 0.6), simulate(rng, (3, 60), 0.01, 0.02, 0.6)
        p.append(find_envelope(old, blocks=12, runs=3, tail=0.005, least=0.0).p(block_means(new, 12)[1]))
    assert np.mean(np.array(p) < 0.1) <= 0.1 + 3 * math.sqrt(0.09 / 400)
    late = np.where(np.arange(STEPS) < 60, 1.0, 1.3)
    verdict = judge([changed(seed, late, device=OTHER) for seed in range(3)])
    assert verdict.status == "regressed"
    assert verdict.p is not None
    assert 0 < verdict.p < 1e-3


def test_a_curve_in_another_unit_is_not_compared_with_that_of_another_cell() -> None:
    verdict = judge_equality("dp8", "loss", [in_unit(record(0), "bits/token")], [record(0)], SAME)
    assert (verdict.status, "bits/token" in verdict.explanation) == ("cannot_tell", True)


SAME = ConvergencePolicy(same_as="gpt-train-cpu-f32-dp1", rtol=1e-3)


def test_a_sharded_curve_that_equals_the_other_is_ok_and_says_how_closely() -> None:
    verdict = judge_equality("dp8", "loss", [changed(0, 1 + 4e-6)], [record(0)], SAME)
    assert verdict.status == "ok"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(4e-6, rel=1e-3)


def test_a_sharded_curve_that_leaves_the_other_is_a_regression_with_its_step() -> None:
    factor = np.ones(STEPS)
    factor[60:] = 1.01
    verdict = judge_equality("dp8", "loss", [changed(0, factor), record(1)], [record(0), record(1)], SAME)
    assert (verdict.status, "at step 60" in verdict.explanation) == ("regressed", True)
    (other,) = verdict.details
    assert other.startswith(f"Seed 1 equals {SAME.same_as} within 0.001 over {STEPS} steps")


def test_without_the_same_seed_equality_cannot_be_told() -> None:
    assert judge_equality("dp8", "loss", [record(0)], [record(1)], SAME).status == "cannot_tell"


def test_a_window_compares_the_leading_steps_only() -> None:
    factor = np.ones(STEPS)
    factor[60:] = 1.01
    windowed = SAME.model_copy(update={"window": 50})
    assert judge_equality("dp8", "loss", [changed(0, factor)], [record(0)], windowed).status == "ok"
    short = record(0, values=losses(0)[:40])
    assert judge_equality("dp8", "loss", [short], [record(0)], windowed).status == "regressed"


def test_a_sharded_nan_is_a_regression() -> None:
    verdict = judge_equality("dp8", "loss", [record(0, values=[math.nan] * STEPS)], [record(0)], SAME)
    assert verdict.explanation == "The loss of seed 0 is NaN from step 0 on."


# Error rates, on simulated log losses: a seed effect plus autocorrelated batch noise.


def simulate(rng: np.random.Generator, shape: tuple[int, int], spread: float, noise: float, phi: float) -> np.ndarray:
    """Curves (runs, steps) with between-seed sd `spread` and AR(1) noise of marginal sd `noise`."""
    runs, steps = shape
    waves = np.empty(shape)
    waves[:, 0] = rng.normal(0, noise, runs)
    steps_noise = rng.normal(0, noise * math.sqrt(1 - phi**2), shape)
    for step in range(1, steps):
        waves[:, step] = phi * waves[:, step - 1] + steps_noise[:, step]
    return waves + rng.normal(0, spread, (runs, 1))


MODELS = [(0.01, 0.02, 0.0), (0.01, 0.02, 0.9), (0.03, 0.005, 0.5), (0.0, 0.05, 0.6)]


def count_false_alarms(
    trials: int, model: tuple[float, float, float], shared: float, seed: int
) -> tuple[int, int, int]:
    """Unchanged curves that are called worse by the envelope, by the final value, or whose interval misses zero."""
    rng = np.random.default_rng(seed)
    alpha, envelope, final, missed = POLICY.alpha, 0, 0, 0
    played = simulate(rng, (13 * trials, 60), *model).reshape(trials, 13, 60)
    for old, fresh in ((runs[:10], runs[10:]) for runs in played):
        new = math.sqrt(shared) * old[:3] + math.sqrt(1 - shared) * fresh
        bounds = find_envelope(old, blocks=12, runs=3, tail=alpha / 2, least=1e-4)
        envelope += bool((block_means(new, 12)[1] > bounds.high).any())
        ends, base = new[:, -6:].mean(axis=1), old[:, -6:].mean(axis=1)
        change = find_change(ends, base, ends - base[:3], tail=alpha / 2)
        final += change.low > 0
        missed += not change.low <= 0 <= change.high
    return envelope, final, missed


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_unchanged_training_is_called_worse_at_most_once_in_a_hundred(
    model: tuple[float, float, float], shared: float
) -> None:
    envelope, final, missed = count_false_alarms(2000, model, shared, seed=5)
    assert envelope <= 17  # 10 are promised (alpha / 2); P(> 17 | 0.5 %) = 1 %
    assert final <= 17
    assert missed <= 31  # 20 are promised; P(> 31 | 1 %) = 1 %


def test_a_final_loss_that_is_worse_by_four_seed_deviations_is_found_nine_times_in_ten() -> None:
    # between runs the end varies by 1.7 %: 1 % seed effect, and six steps of noise of 2 % with autocorrelation 0.6
    rng, found = np.random.default_rng(8), 0
    for _ in range(300):
        old, new = simulate(rng, (10, 60), 0.01, 0.02, 0.6), simulate(rng, (3, 60), 0.01, 0.02, 0.6) + 0.06
        change = find_change(new[:, -6:].mean(axis=1), old[:, -6:].mean(axis=1), np.empty(0), tail=POLICY.alpha / 2)
        found += change.low > 0
    assert found >= 270


def test_noisy_pairs_leave_the_interval_that_needs_no_pairs() -> None:
    new, old, tail = np.array([1.0, 1.1, 1.2]), np.array([0.9, 1.0, 1.1]), 0.01
    change = find_change(new, old, np.array([-9.0, 9.0]), tail=tail)
    half = t_quantile(tail / 2, 4) * math.sqrt(0.04 / 4 * (1 / 3 + 1 / 3))
    assert (change.low, change.estimate, change.high) == pytest.approx((0.1 - half, 0.1, 0.1 + half))
    pairs = np.array([0.099, 0.1, 0.101])
    assert find_change(new, old, pairs, tail=tail).p == pytest.approx(2 * stats.ttest_1samp(pairs, 0).pvalue)


def test_a_value_that_has_no_logarithm_cannot_be_compared() -> None:
    negative = [record(seed, values=[*losses(seed)[:-1], -1.0]) for seed in range(10)]
    verdict = judge([record(0, device=OTHER)], make_convergence(CELL, ("train",), negative))
    assert (verdict.status, "not positive: set scale = 'linear'" in verdict.explanation) == ("cannot_tell", True)
    assert judge_equality("dp8", "loss", negative[:1], [record(0)], SAME).status == "cannot_tell"


def test_the_pairs_are_trusted_where_the_intervals_exclude_each_other() -> None:
    new, old = np.array([1.0, 1.001, 1.002]), np.array([0.0, 0.001, 0.002])
    change = find_change(new, old, np.array([3.0009, 3.001, 3.0011]), tail=0.01)
    assert 3.0 < change.low < 3.0009 < change.estimate < 3.0011 < change.high < 3.002
    same = find_change(np.ones(2), np.ones(2), np.zeros(2), tail=0.01)
    assert (same.low, same.high, same.p) == (0.0, 0.0, 1.0)
