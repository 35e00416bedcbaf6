"""The smallest change that the ledger names is about the one that the judges find."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nightjar_ci.baselines.baseline import make_convergence
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.policy import PerformancePolicy, Policies
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.history import Memory, screen_histories
from nightjar_ci.gate.presence import find_smallest_change
from nightjar_ci.judges.convergence.convergence import judge_convergence
from nightjar_ci.judges.performance.performance import Pair, judge_performance
from tests.ci.faulty_nights import TONIGHT, sample
from tests.ci.gate.test_presence import POLICIES, due, earlier, gate_edited, here
from tests.ci.judges.judged import judge_history, make_series
from tests.ci.nights import CELL, STEPS, baseline, losses, record

JUDGED = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{}], "convergence": [{}]})
TESTS = 20


def find(verdict: Verdict, series: Series | None = None, memory: Memory = Memory()) -> tuple[float, str] | None:  # noqa: B008  (frozen)
    memory = replace(memory, series=() if series is None else (series,))
    return find_smallest_change(verdict, JUDGED, screen_histories(memory, JUDGED), TESTS / JUDGED.night.q)


def smallest(verdict: Verdict, series: Series | None = None) -> float:
    found = find(verdict, series)
    assert found is not None
    return found[0]


def pairs(rng: np.random.Generator, change: float, count: int = 12, sd: float = 0.01) -> list[Pair]:
    def run(level: float) -> RunRecord:
        seconds = level * math.exp(rng.normal(0, sd))
        return record(step_times=(9.0, seconds, seconds), values=[1.0])

    return [
        Pair(number=number, candidate=run(0.05 * (1 + change)), reference=run(0.05)) for number in range(1, count + 1)
    ]


def test_a_slow_down_of_the_size_that_pairs_name_is_found_about_nine_times_in_ten() -> None:
    rng, policy = np.random.default_rng(5), PerformancePolicy(looks=(12,), alphas=(5e-4,), ok_alphas=(1e-2,))
    sizes = [smallest(judge_performance(CELL, pairs(rng, 0.0), "before", policy)) for _ in range(20)]
    size = float(np.median(sizes))
    found = [judge_performance(CELL, pairs(rng, size), "before", policy).status == "regressed" for _ in range(60)]
    assert 0.75 <= np.mean(found) <= 1.0
    small = [judge_performance(CELL, pairs(rng, size / 3), "before", policy).status == "regressed" for _ in range(60)]
    assert np.mean(small) < 0.3


def history(noise: float, last: float = 1.0, better: str = "lower") -> Series:
    values = 0.05 * np.exp(np.random.default_rng(11).normal(0, noise, 50))
    values[-1] = 0.05 * last
    return make_series(values, f"{CELL}/step_time", better=better)


def is_found(series: Series) -> bool:
    verdict = judge_history(series, JUDGED.history[0])
    assert verdict is not None
    weighed = verdict.p is None or verdict.p * TESTS <= JUDGED.night.q
    return verdict.status in ("cannot_tell", "regressed") and weighed


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_history_finds_the_change_that_the_ledger_names_and_not_the_next_smaller_one(
    noise: float, better: str
) -> None:
    series = history(noise, better=better)
    verdict = judge_history(series, JUDGED.history[0])
    assert verdict is not None
    size = smallest(verdict, series)
    level = float(np.median(series.values[:-1]))

    def with_last(change: float) -> Series:
        values = series.values.copy()
        values[-1] = level * (1 + change if better == "lower" else 1 / (1 + change))
        return replace(series, values=values)

    assert noise < size < 40 * noise
    assert is_found(with_last(1.001 * size))
    assert not is_found(with_last(0.999 * size))


def test_curves_name_what_their_policy_allows() -> None:
    policy = JUDGED.convergence[0]
    same = judge_convergence(CELL, "loss", [record(0)], baseline(), policy)
    assert smallest(same) == policy.early_rtol
    other = judge_convergence(CELL, "loss", [record(seed) for seed in range(20, 30)], baseline(), policy)
    assert (other.p is not None, smallest(other)) == (True, policy.margin)


def test_a_reproduced_curve_names_what_its_loosest_step_was_allowed() -> None:
    reordered = [record(seed, values=(np.array(losses(seed)) * (1 + 2e-6)).tolist()) for seed in range(10)]
    known = make_convergence(CELL, ("train",), [record(seed) for seed in range(10)], reordered)
    size = smallest(judge_convergence(CELL, "loss", [record(0)], known, JUDGED.convergence[0]))
    assert 2e-5 <= size <= 3e-5  # ten times what the replicas do, and the digits that a baseline keeps

    def judge(factor: float) -> str:
        late = np.array(losses(0)) * np.exp(factor * size * (np.arange(STEPS) >= 100))
        return judge_convergence(CELL, "loss", [record(0, values=late.tolist())], known, JUDGED.convergence[0]).status

    assert (judge(0.9), judge(1.1)) == ("ok", "regressed")


def test_what_was_found_or_cannot_be_judged_has_no_number() -> None:
    worse = history(0.01)
    worse.values[-15:] *= 1.3
    verdict = judge_history(worse, JUDGED.history[0])
    assert verdict is not None
    assert verdict.status == "regressed"
    assert find(verdict, worse) is None
    without = judge_convergence(CELL, "loss", [record(0)], None, JUDGED.convergence[0])
    assert find(without) is None


def test_nights_before_an_accepted_change_are_no_history_of_the_new_level() -> None:
    series = history(0.01)
    moved = replace(series, values=np.concatenate([series.values[:-12] / 2, series.values[-12:]]))
    verdict = judge_history(series, JUDGED.history[0])
    assert verdict is not None
    assert 1 < smallest(verdict, moved) < 1.1  # the later level is twice the earlier
    memory = Memory(accepted={series.name: [series.nights[-12]]})
    assert find(verdict, moved, memory) is None  # eleven nights are too few to be judged


__all__ = ["earlier", "here"]


def test_of_what_only_a_policy_names_one_job_is_enough(here: Path) -> None:
    named = f'[[history]]\njobs = "{CELL}"\nmeasure = "tokens_per_s"\n'
    write_text(here / "ci" / "policies.toml", POLICIES + named)
    speed = sample("tokens_per_s", "tokens/s", 900.0, better="higher")
    assert gate_edited(here, lambda results: results[f"{CELL}-s1"]["samples"].append(speed)) == (0, [])


def test_what_a_policy_judges_later_has_too_few_nights(here: Path) -> None:
    write_text(here / "ci" / "policies.toml", POLICIES.replace('"step_time"', '"step_time"\nmin_nights = 60'))
    gate_edited(here, lambda results: None)
    ledger = here / "nights" / TONIGHT
    assert due(ledger, f"{CELL}/step_time").not_judged == "too few nights in this environment"
    assert due(ledger, f"{CELL}/bandwidth").not_judged == "no policy judges it"
