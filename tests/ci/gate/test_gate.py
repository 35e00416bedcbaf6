import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import make_facts, write_convergence, write_facts
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import Policies, read_policies
from nightjar_ci.formats.run_record import Facts, RunRecord
from nightjar_ci.formats.verdict import Effect, NightVerdicts, Verdict
from nightjar_ci.gate.gate import find_exit_code, gate_night, judge_night
from nightjar_ci.report.contents import gather
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_night
from tests.ci.nights import (
    CELL,
    baseline,
    failed,
    leave_pair,
    losses,
    make_night,
    outcome,
    program_facts,
    record,
    tally,
)
from tests.places import ROOT

POLICIES = Policies.model_validate(
    {"schema": "nightjar.policies/1", "convergence": [{}], "facts": [{}], "performance": [{"delta": 0.05}]}
)
Runs = list[tuple[Outcome, RunRecord | None]]


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    write_convergence(tmp_path / "baselines", baseline())
    write_facts(tmp_path / "baselines", make_facts(CELL, [record(0)]))
    return tmp_path / "baselines"


def night(tmp_path: Path, records: Sequence[RunRecord]) -> Path:
    runs: Runs = [(outcome(one.job), one) for one in records]
    return make_night(tmp_path / "night", runs)


def add_earlier(store: Store, tmp_path: Path, facts: Facts) -> None:
    name, run = "2026-11-20T0300-1a2b", record(0, facts=[facts.model_dump(mode="json")])
    folder = make_night(tmp_path / "earlier" / name, [(outcome(run.job), run)], name)
    import_night(store, folder)


def judge(folder: Path, baselines: Path) -> tuple[int, NightVerdicts]:
    results = read_night_results(folder)
    verdicts = judge_night(results, POLICIES, baselines)
    return find_exit_code(results, verdicts), verdicts


def statuses(folder: Path, baselines: Path) -> dict[tuple[str, str], str]:
    return {(v.judge, v.series.partition("/")[2]): v.status for v in judge(folder, baselines)[1].verdicts}


def test_a_good_night_is_ok_and_ends_with_0(tmp_path: Path, baselines: Path) -> None:
    folder = night(tmp_path, [record(seed) for seed in range(3)])
    code, verdicts = judge(folder, baselines)
    assert statuses(folder, baselines) == {("convergence", "loss"): "ok", ("facts", "train_step"): "ok"}
    assert code == 0
    assert "The performance judge is off: no reference environment was named (`--reference`)." in verdicts.notes


def test_what_a_store_gets_is_json_although_a_tolerance_is_infinite(
    tmp_path: Path, baselines: Path, store: Store
) -> None:
    policies = read_policies(ROOT / "ci" / "policies.toml")
    folder = night(tmp_path, [record(seed) for seed in range(3)])
    verdicts = gate_night(read_night_results(folder), policies, baselines, store)
    assert "Infinity" in json.dumps([verdict.document for verdict in verdicts.verdicts], allow_nan=False)
    assert store.judged().keys() == {verdict.series for verdict in verdicts.verdicts}


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_a_verdict_with_an_infinite_effect_comes_back_from_a_store(number: float) -> None:
    effect = Effect(value=number, unit="loss")
    first = Verdict(series="a/b", judge="facts", status="ok", effect=effect, n=1, policy={}, runs=(), explanation="")
    body = json.loads(json.dumps(first.document, allow_nan=False))
    assert Verdict.model_validate(body) == first


def test_another_learning_rate_is_named_by_the_convergence_judge_and_by_nothing_else(
    tmp_path: Path, baselines: Path
) -> None:
    drift = [math.exp(0.002 * step) for step in range(120)]
    runs = [record(s, values=[v * d for v, d in zip(losses(s), drift, strict=True)]) for s in range(3)]
    folder = night(tmp_path, runs)
    for number in range(1, 5):
        leave_pair(folder, CELL, number, (0.05, 0.05 + 1e-5 * number))
    assert statuses(folder, baselines) == {
        ("convergence", "loss"): "regressed",
        ("facts", "train_step"): "ok",
        ("performance", "step_time"): "ok",
    }


def test_a_sleep_in_the_step_is_named_by_the_performance_judge_and_by_nothing_else(
    tmp_path: Path, baselines: Path
) -> None:
    folder = night(tmp_path, [record(seed) for seed in range(3)])
    for number in range(1, 5):
        leave_pair(folder, CELL, number, (0.06 + 1e-4 * number, 0.05))
    assert statuses(folder, baselines) == {
        ("convergence", "loss"): "ok",
        ("facts", "train_step"): "ok",
        ("performance", "step_time"): "regressed",
    }
    assert judge(folder, baselines)[0] == 1


def test_a_fusion_turned_off_is_named_by_the_facts_judge_and_by_nothing_else(tmp_path: Path, baselines: Path) -> None:
    unfused = program_facts(fusions={"kLoop": tally(177)})
    folder = night(tmp_path, [record(seed, facts=[unfused]) for seed in range(3)])
    assert statuses(folder, baselines) == {("convergence", "loss"): "ok", ("facts", "train_step"): "regressed"}


def test_without_baselines_it_cannot_tell_and_ends_with_4(tmp_path: Path) -> None:
    folder = night(tmp_path, [record(0)])
    code, verdicts = judge(folder, tmp_path / "none")
    assert {verdict.status for verdict in verdicts.verdicts} == {"cannot_tell"}
    assert code == 4


@pytest.mark.parametrize(
    ("had", "line"), [(False, "new tonight: "), (True, "as in the latest earlier night")], ids=["new", "had"]
)
def test_a_difference_from_the_baseline_says_whether_the_night_before_had_it(
    tmp_path: Path, baselines: Path, store: Store, had: bool, line: str
) -> None:
    other = Facts.model_validate(program_facts(custom_calls={"__cublas": tally(4)}))
    add_earlier(store, tmp_path, other if had else record(0).facts[0])
    folder = night(tmp_path, [record(facts=[other.model_dump(mode="json")])])
    judged = gate_night(read_night_results(folder), POLICIES, baselines, store).verdicts
    (verdict,) = [one for one in judged if one.judge == "facts"]
    assert verdict.status == "regressed"
    assert verdict.details[-1].startswith(line)


def test_facts_without_a_baseline_are_compared_with_the_latest_earlier_night(tmp_path: Path, store: Store) -> None:
    add_earlier(store, tmp_path, Facts.model_validate(program_facts(flops=1.0)))
    folder = night(tmp_path, [record(0)])
    judged = gate_night(read_night_results(folder), POLICIES, tmp_path / "none", store).verdicts
    (facts,) = [verdict for verdict in judged if verdict.judge == "facts"]
    assert facts.status == "regressed"
    assert "the latest earlier night" in facts.explanation


def test_a_job_that_failed_ends_the_night_with_3_and_the_others_are_judged(tmp_path: Path, baselines: Path) -> None:
    runs: Runs = [(outcome(f"{CELL}-s0"), record(0)), (failed(f"{CELL}-s1", "killed"), None)]
    folder = make_night(tmp_path / "night", runs)
    code, verdicts = judge(folder, baselines)
    assert [verdict.status for verdict in verdicts.verdicts] == ["ok", "ok"]
    assert code == 3
    assert any("-s1 killed" in note for note in verdicts.notes)


def test_a_diverged_training_ends_with_3_and_the_convergence_judge_names_the_step(
    tmp_path: Path, baselines: Path
) -> None:
    diverged = record(1, values=[*losses(1)[:30], math.nan], status="diverged")
    folder = make_night(tmp_path / "night", [(outcome(f"{CELL}-s0"), record(0)), (failed(f"{CELL}-s1"), diverged)])
    code, verdicts = judge(folder, baselines)
    assert verdicts.verdicts[0].explanation == "The loss of seed 1 is NaN from step 30 on."
    assert code == 3


def test_a_diverged_training_ends_with_3_even_if_its_program_ended_with_0(tmp_path: Path, baselines: Path) -> None:
    folder = night(tmp_path, [record(0, values=losses(0)[:30], status="diverged")])
    assert judge(folder, baselines)[0] == 3


def test_a_reference_that_cannot_run_ends_with_3(tmp_path: Path, baselines: Path) -> None:
    folder = night(tmp_path, [record(0)])
    leave_pair(folder, CELL, 1, (0.05, 0.05))
    path = folder / "ab" / CELL / "01-b" / "outcome.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": "not_started"}))
    code, verdicts = judge(folder, baselines)
    assert [v.status for v in verdicts.verdicts if v.judge == "performance"] == ["cannot_tell"]
    assert code == 3


def test_a_curve_without_a_policy_is_noted_not_judged(tmp_path: Path, baselines: Path) -> None:
    none = Policies.model_validate({"schema": "nightjar.policies/1"})
    verdicts = judge_night(read_night_results(night(tmp_path, [record(0)])), none, baselines)
    assert verdicts.verdicts == ()
    assert any("loss is not judged" in note for note in verdicts.notes)


def test_a_cell_is_not_compared_with_itself(tmp_path: Path, baselines: Path) -> None:
    equal = {"schema": "nightjar.policies/1", "convergence": [{"same_as": CELL, "rtol": 1e-5}]}
    other = f"{CELL}-dp8"
    records = [record(0), record(0, job=f"{other}-s0")]
    verdicts = judge_night(
        read_night_results(night(tmp_path, records)), Policies.model_validate(equal), baselines
    ).verdicts
    assert [(one.series, one.status) for one in verdicts] == [(f"{other}/loss", "ok")]


def test_a_folder_that_is_no_night_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"night\.json: no such file"):
        judge_night(read_night_results(tmp_path), POLICIES, tmp_path)


@pytest.mark.parametrize("text", [None, "", '{"schema": "nightjar.run/1", "job'])
def test_a_result_that_was_lost_or_cut_since_the_run_is_never_a_yes(
    tmp_path: Path, baselines: Path, text: str | None
) -> None:
    folder = night(tmp_path, [record(seed) for seed in range(3)])
    for path in folder.glob("jobs/*/result.json"):
        path.unlink() if text is None else path.write_text(text)
    code, verdicts = judge(folder, baselines)
    assert code == 3
    assert any("invalid" in note for note in verdicts.notes)


def test_an_unfinished_night_is_never_a_yes(tmp_path: Path, baselines: Path) -> None:
    folder = night(tmp_path, [record(seed) for seed in range(3)])
    assert judge(folder, baselines)[0] == 0
    write_night(folder, read_night(folder).model_copy(update={"finished_at": None}))
    code, verdicts = judge(folder, baselines)
    assert code == 3
    assert any("not finished" in note for note in verdicts.notes)


@pytest.mark.parametrize(
    ("ended", "planned", "note"),
    [
        (0, 3, f"three jobs have not run: {CELL}-s0, {CELL}-s1, {CELL}-s2."),
        (2, 3, f"one job has not run: {CELL}-s2."),
        (0, 0, "The night has no jobs, so there is nothing to judge."),
    ],
)
def test_a_finished_night_whose_jobs_have_not_run_cannot_tell(
    tmp_path: Path, baselines: Path, ended: int, planned: int, note: str
) -> None:
    folder = night(tmp_path, [record(seed) for seed in range(3)])
    whole = read_night(folder)
    ids = tuple(outcome.job for outcome in whole.jobs)
    write_night(folder, whole.model_copy(update={"planned": ids[:planned], "jobs": whole.jobs[:ended]}))
    code, verdicts = judge(folder, baselines)
    assert code == 4
    assert note in verdicts.notes
    contents = gather(read_night_results(folder), verdicts, POLICIES, baselines)
    assert contents.exit_text.startswith("no regression found, but ")


def test_a_regression_is_said_though_other_jobs_have_not_run(tmp_path: Path, baselines: Path) -> None:
    folder = night(tmp_path, [record(seed).model_copy(update={"facts": ()}) for seed in range(3)])
    write_night(folder, read_night(folder).model_copy(update={"planned": ("another",)}))
    assert judge(folder, baselines)[0] == 1


def test_facts_that_are_no_longer_written_have_vanished(tmp_path: Path, baselines: Path) -> None:
    folder = night(tmp_path, [record(seed).model_copy(update={"facts": ()}) for seed in range(3)])
    assert statuses(folder, baselines)["facts", "train_step"] == "regressed"


def test_a_night_cannot_name_a_job_outside_of_its_folder(tmp_path: Path) -> None:
    folder = night(tmp_path, [record(0)])
    path = folder / "night.json"
    path.write_text(path.read_text().replace(f"{CELL}-s0", "../../elsewhere"))
    with pytest.raises(InputError, match=r"jobs 1\.job"):
        judge_night(read_night_results(folder), POLICIES, tmp_path)
