"""Runs against MLPerf's reference convergence points: slower, too fast, unlike, and as they should be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import ttest_ind_from_stats

from nightjar_ci.baselines.reference_points import ReferencePoint
from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord, Sample
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.reference_points import least_mean, make_point
from tests.ci.nights import CELL, baseline, record

TIMES = tuple(1000.0 * time for time in (20, 21, 22, 20.5, 21.5, 22.5, 21, 20, 22, 21))
POINT = ReferencePoint(name="bert_ref_256", benchmark="bert", batch_size=256, times=TIMES)
POLICY = ConvergencePolicy(target=0.72)


def run(seed: int, time: float, target: float = 0.72) -> RunRecord:
    """A run that reaches the target after that many samples, and ends there."""
    steps = [int(time * share) for share in (0.25, 0.5, 0.75, 1.0)]
    made = record(seed, steps=steps, values=[0.3, 0.5, 0.7, target])
    (curve,) = made.curves[:1]
    batch = Sample(name="global_batch_size", unit="", better="lower", values=(256.0,))
    return made.model_copy(
        update={"curves": (curve.model_copy(update={"better": "higher"}),), "samples": (*made.samples, batch)}
    )


def judge(times: Sequence[float], policy: ConvergencePolicy = POLICY) -> Verdict:
    runs = [run(seed, time) for seed, time in enumerate(times)]
    return judge_convergence(CELL, "loss", runs, None, policy, [POINT])


def test_runs_as_fast_as_the_reference_are_ok_although_they_end_at_different_steps() -> None:
    verdict = judge([20500, 21500, 21000, 22000, 21200])
    assert verdict.status == "ok"
    assert "bert_ref_256: 10 runs" in verdict.explanation


def test_slower_runs_are_regressed() -> None:
    verdict = judge([1.2 * time for time in TIMES[:5]])
    assert verdict.status == "regressed"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(0.2, abs=0.03)


def test_runs_that_mlperf_calls_too_fast_are_regressed() -> None:
    verdict = judge([0.8 * time for time in TIMES[:5]])
    assert verdict.status == "regressed"
    assert "too fast, so something else is trained" in verdict.explanation


def test_a_run_that_never_reaches_the_target_is_regressed() -> None:
    runs = [run(0, 21000), run(1, 21000, target=0.71)]
    verdict = judge_convergence(CELL, "loss", runs, None, POLICY, [POINT])
    assert verdict.status == "regressed"
    assert "never reaches 0.72 (seed 1)" in verdict.explanation


def test_another_batch_size_has_no_reference() -> None:
    point = ReferencePoint(name="a", benchmark="bert", batch_size=512, times=TIMES)
    verdict = judge_convergence(CELL, "loss", [run(0, 21000)], None, POLICY, [point])
    assert verdict.status == "cannot_tell"
    assert "batch size of 256" in verdict.explanation


def test_the_smallest_mean_is_where_mlperfs_test_turns() -> None:
    least = least_mean(POINT, 5)
    for mean, refused in ((least * 0.9999, True), (least * 1.0001, False)):
        p = ttest_ind_from_stats(mean, POINT.stdev, 8, POINT.mean, POINT.stdev, 3).pvalue / 2  # as their checker asks
        assert bool(p < 0.05) is refused


def test_unchanged_runs_are_rarely_red() -> None:
    rng = np.random.default_rng(3)
    red = 0
    for _ in range(300):
        times = 21000 * np.exp(rng.normal(0, 0.04, 15))
        point = ReferencePoint(name="a", benchmark="bert", batch_size=256, times=tuple(times[:10]))
        runs = [run(seed, time) for seed, time in enumerate(times[10:])]
        told = judge_convergence(CELL, "loss", runs, None, ConvergencePolicy(target=0.72), [point])
        red += told.status == "regressed"
    assert red <= 30  # MLPerf's side alone refuses about one in twenty


def test_a_baseline_of_ours_makes_a_point_of_samples() -> None:
    known = baseline().model_copy(update={"config": {"batch_size": 32}})
    point = make_point(known, "loss", 3.0, "tiny")
    assert (point.name, point.batch_size, len(point.times)) == ("tiny_ref_32", 32, 10)
    assert all(time % 32 == 0 for time in point.times)
    with pytest.raises(InputError, match=r"does not reach 0\.1"):
        make_point(known, "loss", 0.1, "tiny")
    with pytest.raises(InputError, match="no curve 'accuracy'"):
        make_point(known, "accuracy", 0.1, "tiny")
    with pytest.raises(InputError, match="no `batch_size`"):
        make_point(baseline().model_copy(update={"config": {}}), "loss", 3.0, "tiny")
