"""Which runs make a baseline: every seed, once more one rounding off where a policy says how, and never mixed up."""

import math
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import make_convergence, read_convergence, write_convergence
from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import ConvergencePolicy, Policies
from nightjar_ci.gate.baseline_runs import find_fault, find_replica_fault, needs_curves, plan_runs, read_cells
from nightjar_ci.night.matrix import read_matrix
from tests.called import call
from tests.ci.nights import CELL, losses, make_night, outcome, record

MATRIX = """
schema = "nightjar.matrix/1"
name = "small"
[[job]]
name = "gpt"
command = ["train", "--seed", "{seed}", "--out", "{out}"]
seeds = [0]
"""


def policies(*entries: ConvergencePolicy) -> Policies:
    return Policies.model_validate({"schema": "nightjar.policies/1", "convergence": entries})


def planned(tmp_path: Path, numbers: Policies, *, facts_only: bool = False) -> dict[str, tuple[str, ...]]:
    (tmp_path / "matrix.toml").write_text(MATRIX)
    jobs = plan_runs(read_matrix(tmp_path / "matrix.toml"), numbers, None, "0:10", facts_only=facts_only)
    return {job.id: job.command for job in jobs}


def test_every_seed_runs_once_more_with_the_arguments_of_the_policy(tmp_path: Path) -> None:
    jobs = planned(tmp_path, policies(ConvergencePolicy(replica_args=("--nudged",))))
    assert len(jobs) == 20
    assert jobs["gpt-s3-replica"] == (*jobs["gpt-s3"], "--nudged")


def test_without_such_arguments_or_curves_there_are_no_replicas(tmp_path: Path) -> None:
    assert len(planned(tmp_path, policies(ConvergencePolicy()))) == 10
    assert len(planned(tmp_path, policies(ConvergencePolicy(jobs="vit*", replica_args=("--nudged",))))) == 10
    assert len(planned(tmp_path, policies(ConvergencePolicy(replica_args=("--nudged",))), facts_only=True)) == 1


def test_replicas_are_told_from_the_runs_that_they_repeat(tmp_path: Path) -> None:
    runs = [(outcome(f"{CELL}-s{seed}"), record(seed)) for seed in range(2)]
    again = outcome(f"{CELL}-s0-replica", cell=CELL, replicate=0, command=("train", "--nudged"))
    (cell,) = read_cells(make_night(tmp_path, [(again, record(0, values=losses(5))), *runs]))
    assert [one.seed for one in cell.records] == [0, 1]
    assert [one.curves[0].values[0] for one in cell.replicas] == [losses(5)[0]]
    assert cell.command == ("train", "--out", "{out}")
    assert needs_curves(cell, policies(ConvergencePolicy()))


def test_too_few_seeds_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(MATRIX)
    with pytest.raises(InputError, match="3 seeds, expected at least 10"):
        plan_runs(read_matrix(tmp_path / "matrix.toml"), policies(), None, "0:3", facts_only=False)


def test_a_pattern_chooses_runs_by_job_or_by_cell(tmp_path: Path) -> None:
    folder = make_night(
        tmp_path, [(outcome("gpt-s0", cell="gpt"), record(0)), (outcome("vit-s0", cell="vit"), record(0))]
    )
    assert [cell.cell for cell in read_cells(folder)] == ["gpt", "vit"]
    assert [cell.cell for cell in read_cells(folder, "vi?")] == ["vit"]
    assert [cell.cell for cell in read_cells(folder, "gpt-s*")] == ["gpt"]
    assert read_cells(folder, "*-s1") == []


def test_a_cell_without_runs_or_curves_needs_no_curves(tmp_path: Path) -> None:
    (cell,) = read_cells(make_night(tmp_path, [(outcome(f"{CELL}-s0"), record(0))]))
    bare = record(0).model_copy(update={"curves": ()})
    for records in ((), (bare,)):
        assert not needs_curves(replace(cell, records=records), policies(ConvergencePolicy()))


def test_a_curve_that_is_not_finite_makes_no_baseline_where_it_is_judged(tmp_path: Path) -> None:
    runs = [(outcome(f"{CELL}-s{seed}"), record(seed)) for seed in range(2)]
    bad = record(2, values=[2.0, math.nan, math.inf])
    (cell,) = read_cells(make_night(tmp_path, [*runs, (outcome(f"{CELL}-s2"), bad)]))
    name = bad.curves[0].name
    assert find_fault(cell, [name]) == f"The {name} of seed 2 is NaN from step 1 on"
    assert find_fault(cell, ["other"]) is None
    assert find_fault(replace(cell, records=cell.records[:2]), [name]) is None


def test_a_replica_that_draws_other_random_numbers_is_found_at_its_first_step(tmp_path: Path) -> None:
    again = outcome(f"{CELL}-s0-replica", cell=CELL, replicate=0, command=("train", "--nudged"))
    shifted = [value * 1.003 for value in losses(0)]
    (cell,) = read_cells(make_night(tmp_path, [(outcome(f"{CELL}-s0"), record(0)), (again, record(0, values=shifted))]))
    fault = find_replica_fault(cell, policies(ConvergencePolicy()))
    assert fault == "the loss of seed 0 and of its replica differ by 0.003 at the first step, which is not rounding"
    assert find_replica_fault(cell, policies(ConvergencePolicy(scale="linear"))) is None
    zero = replace(cell, records=(record(0, values=[0.0, *losses(0)[1:]]),))
    assert find_replica_fault(zero, policies(ConvergencePolicy())) is None
    rounding = [value * (1 + 3e-6) for value in losses(0)]
    assert (
        find_replica_fault(replace(cell, replicas=(record(0, values=rounding),)), policies(ConvergencePolicy())) is None
    )


def test_a_night_on_another_processor_is_added_to_the_baseline_unless_it_departs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_convergence(tmp_path / "base", make_convergence(CELL, ("train",), [record(seed) for seed in range(10)]))

    def night(number: int, factor: float) -> str:
        run = record(3, values=[value * factor for value in losses(3)])
        cpu = run.environment.cpu.model_copy(update={"architecture": "ARM"})
        there = run.model_copy(update={"environment": run.environment.model_copy(update={"cpu": cpu})})
        return str(make_night(tmp_path / str(number), [(outcome(f"{CELL}-s3"), there)]))

    add = partial(call, main, "baseline", "--baselines", "base", "--add", "--from")
    refused = add(night(1, 1.02))
    error = " ".join(refused.stderr.split())
    assert refused.returncode == 3
    assert "leaves the baseline's same-seed curve" in error
    assert "Hint: a change that is wanted needs a new baseline: ten seeds, without --add" in error
    before = read_convergence(tmp_path / "base", CELL)
    assert before is not None
    assert not before.elsewhere
    assert add(night(2, 1 + 1e-6)).returncode == 0
    after = read_convergence(tmp_path / "base", CELL)
    assert after is not None
    assert after.curves == before.curves
    assert [there.environment.cpu.architecture for there in after.elsewhere] == ["ARM"]
    (tmp_path / "base" / CELL / "convergence.json").unlink()
    alone = add(night(3, 1.0))
    assert (alone.returncode, "no baseline of the cells" in alone.stderr) == (2, True)


def test_a_cell_with_an_infinite_curve_keeps_its_baseline_and_the_others_get_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = """
[[job]]
name = "{name}"
command = ["python", "-c", "for step in range(3): print('loss', {loss})"]
seeds = [0]
[job.adapter]
format = "log"
pattern = 'loss (?P<loss>\\S+)'
curve = [{{ field = "loss" }}]
"""
    head = 'schema = "nightjar.matrix/1"\nname = "two"\n'
    jobs = [
        job.format(name="bad", loss="1e999 if step else 1.0 + {seed}"),
        job.format(name="good", loss="1.0 + {seed}"),
    ]
    (tmp_path / "two.toml").write_text(head + "".join(jobs))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", ".nightjar")
    subprocess.run(["git", "init", "-q"], check=True)
    done = call(main, "baseline", "two.toml")
    error = " ".join(done.stderr.split())
    assert done.returncode == 3
    assert "bad: The loss of seed 0 is infinite from step 1 on: its baseline was not written" in error
    written = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "ci").rglob("*.json"))
    assert written == ["ci/nightjar/baselines/good/convergence.json"]
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    assert status.splitlines() == ["?? ci/", "?? two.toml"]
