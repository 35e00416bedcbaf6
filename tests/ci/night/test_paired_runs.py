from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import read_result
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.formats.policy import PerformancePolicy, Policies
from nightjar_ci.gate.gate import read_pairs
from nightjar_ci.judges.performance.performance import Pair
from nightjar_ci.night.paired_runs import Comparison, jobs_to_compare, run_pairs, schedule, short_job
from tests.ci.jobs import make_job
from tests.ci.nights import CELL, leave_result, record

POLICY = PerformancePolicy(ab_args=("--steps", "60"), delta=0.02)
REFERENCE = "uv:jax==0.10.1"


def job(replicate: int = 0, cell: str = CELL, kind: str = "train") -> Job:
    command = ("train", "--out", "{out}")
    return make_job(*command, id=f"{cell}-s{replicate}", cell=cell, replicate=replicate, kind=kind)


class Machine:
    """Pretends to run: step times by environment, with a little noise, and a log of the runs."""

    def __init__(self, seconds: Mapping[str, float], fails_at: int | None = None) -> None:
        self.seconds, self.fails_at, self.log = seconds, fails_at, list[Job]()
        self.rng = np.random.default_rng(0)

    def run(self, one: Job, folder: Path) -> Outcome:
        self.log.append(one)
        state = "failed" if self.fails_at == len(self.log) else "completed"
        seconds = self.seconds[one.environment] * float(np.exp(self.rng.normal(0, 0.002)))
        leave_result(folder, record(step_times=(9.0, seconds, seconds)))
        outcome = make_outcome(one, state=state, started_at="2026-11-21T03:00:00+00:00")  # type: ignore[arg-type]
        write_json(folder / "outcome.json", outcome)
        return outcome


def compare(tmp_path: Path, machine: Machine) -> list[Pair]:
    comparison = Comparison(job=job(), reference=REFERENCE, how=POLICY, numbers=POLICY)
    return run_pairs(comparison, tmp_path, run=machine.run, read=read_result)


def test_pairs_are_interleaved_a_b_b_a() -> None:
    assert [f"{pair}{side}" for pair, side in schedule(4)] == ["1a", "1b", "2b", "2a", "3a", "3b", "4b", "4a"]


@pytest.mark.parametrize("pairs", [4, 8, 12])
def test_each_side_comes_first_equally_often_so_that_drift_cancels(pairs: int) -> None:
    places = {side: [i for i, (_, s) in enumerate(schedule(pairs)) if s == side] for side in "ab"}
    assert sum(places["a"]) == sum(places["b"])


def test_a_clear_difference_stops_after_the_first_look(tmp_path: Path) -> None:
    machine = Machine({"current": 0.06, REFERENCE: 0.05})
    pairs = compare(tmp_path, machine)
    assert [pair.number for pair in pairs] == [1, 2, 3, 4]
    assert [one.environment for one in machine.log[:4]] == ["current", REFERENCE, REFERENCE, "current"]
    assert all(one.command[-2:] == ("--steps", "60") for one in machine.log)


def test_the_gate_reads_back_the_pairs_that_were_run(tmp_path: Path) -> None:
    pairs = compare(tmp_path, Machine({"current": 0.06, REFERENCE: 0.05}))
    ((cell, (reference, back)),) = read_pairs(tmp_path).items()
    assert (cell, reference) == (CELL, REFERENCE)
    times = [[run.samples[0].values for run in (p.candidate, p.reference) if run] for p in pairs]
    assert [[run.samples[0].values for run in (p.candidate, p.reference) if run] for p in back] == times


def test_an_unclear_difference_uses_the_budget(tmp_path: Path) -> None:
    class Noisy(Machine):
        def run(self, one: Job, folder: Path) -> Outcome:
            self.seconds = {name: 0.05 * float(np.exp(self.rng.normal(0, 0.1))) for name in ("current", REFERENCE)}
            return super().run(one, folder)

    machine = Noisy({})
    assert len(compare(tmp_path, machine)) == 12
    assert len(machine.log) == 24


def test_a_run_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    machine = Machine({"current": 0.05, REFERENCE: 0.05}, fails_at=2)
    (pair,) = compare(tmp_path, machine)
    assert pair.candidate is not None
    assert pair.reference is None
    assert len(machine.log) == 2


def test_each_run_has_an_id_of_its_own() -> None:
    ids = {short_job(job(), "current", pair, side, POLICY).id for pair, side in schedule(12)}
    assert len(ids) == 24


def test_only_the_first_training_job_of_a_cell_with_a_policy_is_compared() -> None:
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "performance": [{"jobs": "*-dp1"}]})
    jobs = [job(1, "gpt-dp1"), job(2, "gpt-dp1"), job(0, "gpt-dp8"), job(0, "prof-dp1", kind="profile")]
    assert [one.id for one, _ in jobs_to_compare(jobs, policies)] == ["gpt-dp1-s1"]
