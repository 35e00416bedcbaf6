"""Same-seed comparison: differences beyond the replicas' rounding are regressions, smaller ones are not."""

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nightjar_ci.baselines.baseline import (
    ConvergenceBaseline,
    add_elsewhere,
    make_convergence,
    read_convergence,
    write_convergence,
)
from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import ConvergencePolicy, read_policies
from nightjar_ci.formats.run_record import RunRecord, read_run
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.convergence.same_seed import FACTOR, LEAST, find_limits, find_rounding, has_rounding
from tests.ci.nights import CELL, STEPS, losses, record
from tests.places import ROOT, SHARED_DATA


def rounded(seed: int, size: float, number: int = 0) -> RunRecord:
    """The same training with noise that grows by a factor of ten from the first step to the last."""
    random = np.random.default_rng([number, seed])
    noise = size * np.geomspace(1, 10, STEPS) * random.normal(size=STEPS)
    return record(seed, values=[float(value) for value in np.array(losses(seed)) * np.exp(noise)])


def known(size: float = 1e-6) -> ConvergenceBaseline:
    runs = [record(seed) for seed in range(10)]
    return make_convergence(CELL, ("train",), runs, [rounded(seed, size) for seed in range(10)])


def judge(run: RunRecord, policy: ConvergencePolicy | None = None) -> Verdict:
    return judge_convergence(CELL, "loss", [run], known(), policy or ConvergencePolicy())


def test_what_is_larger_than_rounding_is_found_at_any_step_in_one_run() -> None:
    late = np.array(losses(3)) * np.exp(5e-4 * (np.arange(STEPS) >= 80))
    verdict = judge(record(3, values=late.tolist()))
    assert verdict.status == "regressed"
    assert "leaves the baseline's same-seed curve at step 80 (seed 3, up to +0.05 %" in verdict.explanation
    assert "the program computes other numbers" in verdict.explanation


def test_without_replicas_the_same_change_passes_after_the_early_steps() -> None:
    late = np.array(losses(3)) * np.exp(5e-4 * (np.arange(STEPS) >= 80))
    plain = make_convergence(CELL, ("train",), [record(seed) for seed in range(10)])
    assert judge_convergence(CELL, "loss", [record(3, values=late.tolist())], plain, ConvergencePolicy()).status == "ok"


def test_a_declared_change_of_numerics_is_allowed_what_is_declared_and_no_more() -> None:
    bf16 = np.array(losses(3)) * np.exp(4e-3 * np.sin(np.arange(STEPS)))
    assert judge(record(3, values=bf16.tolist())).status == "regressed"
    declared = ConvergencePolicy(paired_rtol=1e-2)
    assert judge(record(3, values=bf16.tolist()), declared).status == "ok"
    assert judge(record(3, values=(bf16 * 1.02).tolist()), declared).status == "regressed"


def test_harmless_runs_are_called_broken_in_at_most_one_of_a_thousand() -> None:
    baseline = known()
    (curve,) = baseline.curves
    limits = find_limits(curve, ConvergencePolicy())
    alarms = 0
    for number in range(1, 201):
        for seed in range(10):
            shift = np.log(np.array(rounded(seed, 1e-6, number).curves[0].values) / np.array(curve.seeds[seed]))
            alarms += bool((np.abs(shift) > limits).any())
    assert alarms <= 2  # of 2,000


NEWER = "0.11.0"


def renewed(shift: float, **changes: str) -> RunRecord:
    """The run of seed 3 with a difference from step 5 on, in another environment."""
    values = np.array(losses(3)) * np.exp(shift * (np.arange(STEPS) >= 5))
    return record(3, values=values.tolist(), **changes)  # type: ignore[arg-type]


def test_a_new_jaxlib_is_allowed_what_released_versions_do_and_no_more() -> None:
    limit = float(find_limits(known().curves[0], ConvergencePolicy())[5])
    assert judge(renewed(0.5 * limit, jaxlib=NEWER)).status == "ok"
    between = judge(renewed(3 * limit, jaxlib=NEWER))
    assert between.status == "cannot_tell"
    assert "more than released versions of jaxlib were seen to differ" in between.explanation
    beyond = judge(renewed(30 * limit, jaxlib=NEWER))
    assert beyond.status == "regressed"
    assert "jaxlib-0.10.2-cpu-x1 to jaxlib-0.11.0-cpu-x1: released versions of jaxlib differ by less" in (
        beyond.explanation
    )


def test_without_replicas_a_departure_under_a_new_jaxlib_is_neither_ok_nor_regressed() -> None:
    plain = make_convergence(CELL, ("train",), [record(seed) for seed in range(10)])
    verdict = judge_convergence(CELL, "loss", [renewed(1e-3, jaxlib=NEWER)], plain, ConvergencePolicy())
    assert verdict.status == "cannot_tell"
    assert "give its policy `replica_args`" in verdict.explanation


def test_a_jaxlib_that_is_installed_later_excuses_no_program_that_ran_without_one() -> None:
    environment = record(0).environment
    packages = {name: version for name, version in environment.packages.items() if name != "jaxlib"}
    environment = environment.model_copy(update={"packages": packages})
    without = [run.model_copy(update={"environment": environment}) for run in map(record, range(10))]
    plain = make_convergence(CELL, ("train",), without)
    verdict = judge_convergence(CELL, "loss", [renewed(1e-3, jaxlib=NEWER)], plain, ConvergencePolicy())
    assert verdict.status == "regressed"
    assert "though processor, devices and data are the same" in verdict.explanation


def test_a_run_whose_packages_nobody_recorded_may_have_had_another_jaxlib() -> None:
    plain = make_convergence(CELL, ("train",), [record(seed) for seed in range(10)])
    run = renewed(1e-3)
    unknown = run.model_copy(update={"environment": run.environment.model_copy(update={"packages": {}})})
    assert judge_convergence(CELL, "loss", [unknown], plain, ConvergencePolicy()).status == "cannot_tell"


def test_another_kind_of_device_may_compute_other_numbers() -> None:
    verdict = judge(renewed(3e-3, device="another kind"))
    assert verdict.status != "regressed"
    assert any("the envelope decides" in line for line in (verdict.explanation, *verdict.details))


def on_processor(run: RunRecord, architecture: str | None, flags: str = "") -> RunRecord:
    cpu = run.environment.cpu.model_copy(update={"architecture": architecture})
    changes = {"cpu": cpu, "flags": {"XLA_FLAGS": flags} if flags else {}}
    return run.model_copy(update={"environment": run.environment.model_copy(update=changes)})


def known_on_three(size: float = 1e-5) -> ConvergenceBaseline:
    """The baseline, with seed 3 on two more processors that round otherwise by up to ten times `size`."""
    baseline = known()
    for number, capped in enumerate(("AVX2", "SSE4_2"), 1):
        run = on_processor(rounded(3, size, number), "GenuineIntel", f"--xla_cpu_max_isa={capped}")
        baseline = add_elsewhere(baseline, [run])
    return baseline


def test_a_processor_that_the_baseline_knows_is_compared_with_itself() -> None:
    baseline = known_on_three(1e-4)
    (there, _) = baseline.elsewhere
    values = np.array(there.curves["loss"][3])
    here = on_processor(record(3, values=values.tolist()), "GenuineIntel", "--xla_cpu_max_isa=AVX2")
    verdict = judge_convergence(CELL, "loss", [here], baseline, ConvergencePolicy())
    assert verdict.status == "ok"
    assert verdict.effect is not None
    assert verdict.effect.value == 0.0
    assert "does not know this processor" not in verdict.explanation
    limit = float(find_limits(baseline.curves[0], ConvergencePolicy())[5])
    departed = values * np.exp(1.5 * limit * (np.arange(STEPS) >= 5))
    fault = on_processor(record(3, values=departed.tolist()), "GenuineIntel", "--xla_cpu_max_isa=AVX2")
    verdict = judge_convergence(CELL, "loss", [fault], baseline, ConvergencePolicy())
    assert verdict.status == "regressed"
    assert "though jaxlib, processor, devices and data are the same" in verdict.explanation


def test_an_unknown_processor_may_do_what_the_known_ones_do_and_no_more() -> None:
    baseline = known_on_three()
    unseen = on_processor(rounded(3, 1e-5, 9), "ARM")
    verdict = judge_convergence(CELL, "loss", [unseen], baseline, ConvergencePolicy())
    assert verdict.status == "ok"
    assert "The baseline does not know this processor, so its limits are those seen on 3 others" in verdict.explanation
    assert "`nightjar-ci baseline --from NIGHT --add` adds this one" in verdict.explanation
    fault = on_processor(record(3, values=(np.array(losses(3)) * 1.01).tolist()), "ARM")
    verdict = judge_convergence(CELL, "loss", [fault], baseline, ConvergencePolicy())
    assert verdict.status == "regressed"
    assert "processors differ by less, so the program computes other numbers" in verdict.explanation


@pytest.mark.parametrize("architecture", ["ARM", None])
def test_where_nothing_says_what_processors_do_a_small_departure_is_neither_ok_nor_regressed(
    architecture: str | None,
) -> None:
    limit = float(find_limits(known().curves[0], ConvergencePolicy())[5])
    small, large = (on_processor(renewed(factor * limit), architecture) for factor in (3, 30))
    verdict = judge(small)
    assert verdict.status == "cannot_tell"
    assert "more than processors were seen to differ" in verdict.explanation
    assert judge(large).status == "regressed"


def test_runs_of_another_environment_are_added_once_and_those_of_the_baselines_own_never() -> None:
    baseline = known_on_three()
    assert add_elsewhere(baseline, [record(3)]) == baseline
    run = on_processor(rounded(3, 1e-5, 7), "GenuineIntel", "--xla_cpu_max_isa=AVX2")
    again = add_elsewhere(baseline, [run])
    assert len(again.elsewhere) == 2
    assert again.elsewhere[-1].curves["loss"][3] == pytest.approx(run.curves[0].values, rel=1e-6)
    with pytest.raises(InputError, match="seed 3 differs in environment or data"):
        add_elsewhere(baseline, [record(3, config={"data_digest": "d2"}, jaxlib=NEWER)])


def test_a_declared_change_holds_under_a_new_jaxlib_too() -> None:
    declared = ConvergencePolicy(paired_rtol=1e-2)
    assert judge(renewed(5e-3, jaxlib=NEWER), declared).status == "ok"
    assert judge(renewed(2e-2, jaxlib=NEWER), declared).status == "regressed"


def test_a_limit_that_allows_a_fifth_reproduces_nothing() -> None:
    run, wide = rounded(3, 2e-2, 1), known(2e-2)
    verdict = judge_convergence(CELL, "loss", [run], wide, ConvergencePolicy(margin=0.001))
    assert "reproduces" not in verdict.explanation
    assert verdict.p is not None  # other seeds decided


def test_five_replicas_are_needed() -> None:
    runs = [record(seed) for seed in range(10)]
    few = make_convergence(CELL, ("train",), runs, [rounded(seed, 1e-6) for seed in range(4)])
    assert np.isinf(find_limits(few.curves[0], ConvergencePolicy())[-1])
    assert np.isfinite(find_limits(known().curves[0], ConvergencePolicy())).all()


def test_replicas_of_seeds_that_were_never_run_do_not_count() -> None:
    curve = known().curves[0]
    alone = curve.model_copy(update={"seeds": {seed: curve.seeds[seed] for seed in list(curve.replicas)[:4]}})
    assert has_rounding(curve, ConvergencePolicy())
    assert not has_rounding(alone, ConvergencePolicy())
    assert has_rounding(alone, ConvergencePolicy(paired_rtol=0.01))


def test_accuracies_are_not_limited_by_replicas() -> None:
    limits = find_limits(known().curves[0], ConvergencePolicy(scale="linear"))
    assert np.isinf(limits[-1])


def test_replicas_are_kept_in_the_file_and_their_faults_refused(tmp_path: Path) -> None:
    write_convergence(tmp_path, known())
    back = read_convergence(tmp_path, CELL)
    assert back == known()
    runs = [record(seed) for seed in range(10)]
    with pytest.raises(InputError, match="seed 2 diverged"):
        make_convergence(CELL, ("train",), runs, [record(2, status="diverged")])
    with pytest.raises(InputError, match="of seed 1 has different steps"):
        make_convergence(CELL, ("train",), runs, [record(1, values=losses(1, 100))])


@given(
    st.lists(st.lists(st.floats(-1e-3, 1e-3), min_size=4, max_size=4), min_size=5, max_size=12),
)
def test_a_limit_never_falls_and_is_never_below_any_replica(shifts: list[list[float]]) -> None:
    sizes = np.abs(np.array(shifts))
    limits = find_rounding(np.array(shifts))
    assert (np.diff(limits) >= 0).all()
    assert (limits >= FACTOR * sizes.max(axis=0) * (1 - 1e-12)).all()
    assert limits[0] >= LEAST["f32"] * (1 - 1e-12)


def test_the_size_of_a_departure_is_that_of_the_steps_that_are_compared() -> None:
    plain = make_convergence(CELL, ("train",), [record(seed) for seed in range(10)])  # limits of the early steps alone
    values = np.array(losses(3)) * np.exp(0.01 * (np.arange(STEPS) == 1) - 0.3 * (np.arange(STEPS) == 90))
    verdict = judge_convergence(CELL, "loss", [record(3, values=values.tolist())], plain, ConvergencePolicy())
    assert "same-seed curve at step 1 (seed 3, up to +1.01 %" in verdict.explanation


def test_the_limit_is_the_prediction_limit_of_log_normal_replicas() -> None:
    shifts = np.array([[1e-4], [-1e-3], [1e-2], [-1e-1], [1.0]])  # far apart: the prediction decides
    logs = np.log(np.abs(shifts[:, 0]))
    expected = math.exp(logs.mean() + stats.t(4).isf(1e-3) * math.sqrt(1 + 1 / 5) * logs.std(ddof=1))
    assert find_rounding(shifts)[0] == pytest.approx(expected)


def test_the_limit_is_ten_times_the_largest_of_replicas_that_agree() -> None:
    assert find_rounding(np.full((5, 1), -0.02))[0] == pytest.approx(0.2)


def test_what_float32_cannot_tell_is_always_rounding() -> None:
    assert find_rounding(np.zeros((5, 3))).tolist() == pytest.approx([1e-6] * 3)
    assert find_rounding(np.zeros((5, 3)), "bf16").tolist() == pytest.approx([3e-5] * 3)


def test_the_limit_stays_where_a_replica_comes_back() -> None:
    shifts = np.tile([0.001, 0.01, 0.002], (6, 1))
    assert find_rounding(shifts).tolist() == pytest.approx([0.01, 0.1, 0.1])


NIGHT = SHARED_DATA / "night-intel-xeon" / "jobs"
BASELINES = ROOT / "ci" / "baselines"


@pytest.mark.skipif(not NIGHT.is_dir(), reason=f"{NIGHT} is not there: NIGHTJAR_TEST_DATA names its folder")
def test_a_whole_night_of_another_processor_is_green_in_every_curve() -> None:
    policies = read_policies(ROOT / "ci" / "policies.toml")
    cells: dict[str, list[RunRecord]] = defaultdict(list)
    for path in sorted(NIGHT.glob("*/result.json")):
        run = read_run(path)
        cells[run.job.rpartition("-s")[0]].append(run)
    judged = []
    for cell, runs in cells.items():
        baseline = read_convergence(BASELINES, cell)
        for curve in runs[0].curves:
            policy = policies.for_curve(cell, curve.name)
            if baseline is None or policy is None or policy.same_as is not None:
                continue
            verdict = judge_convergence(cell, curve.name, runs, baseline, policy)
            assert verdict.status == "ok", f"{verdict.series}: {verdict.explanation}"
            judged.append(verdict.series)
    assert "gpt_tiny-train-cpu-bf16-dp1/loss" in judged
    assert len(judged) >= 20
