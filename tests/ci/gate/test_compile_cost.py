"""A compiler that takes longer is named; a machine that is slower for all cells is not, up to a limit."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import make_facts, write_facts
from nightjar_ci.formats.policy import FactsPolicy, Policies
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.compile_cost import judge_night_compilers
from nightjar_ci.judges.facts.compile_cost import CompileCost, judge_compile_cost
from tests.ci.judges.judged import make_series
from tests.ci.nights import CELL, record

GROWTH = {"compile_cpu_time": 0.5, "compiler_memory": 0.25}
POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "facts": [{"growth": GROWTH}]})


def judge(*seconds: float, memory: float = 1.0) -> list[Verdict]:
    night = [
        CompileCost(
            cell=f"cell{number}",
            runs=(f"cell{number}",),
            now={"compile_cpu_time": now, "compiler_memory": memory * 2**30},
            before={"compile_cpu_time": 10.0, "compiler_memory": 2.0**30},
            source="the committed baseline",
        )
        for number, now in enumerate(seconds)
    ]
    return judge_compile_cost(night, {one.cell: FactsPolicy.model_validate({"growth": GROWTH}) for one in night})


def statuses(verdicts: Sequence[Verdict]) -> list[str]:
    return [one.status for one in verdicts]


def test_a_cell_that_compiles_longer_than_the_others_is_named_with_its_seconds() -> None:
    verdicts = judge(10, 11, 16, 9, 10)
    assert statuses(verdicts) == ["ok", "ok", "regressed", "ok", "ok"]
    assert verdicts[2].series == "cell2/compiler"
    assert verdicts[2].explanation == (
        "Compiling: more than in the committed baseline: 10 -> 16 s of CPU (+60 %), +50 % allowed."
    )


def test_a_slow_machine_is_no_regression_unless_it_is_slower_than_twice_the_growth() -> None:
    assert statuses(judge(18, 19, 18, 20)) == ["ok"] * 4
    assert statuses(judge(18, 19, 18, 40)) == ["ok"] * 3 + ["regressed"]
    assert statuses(judge(23, 23, 23, 23)) == ["regressed"] * 4
    assert statuses(judge(18)) == ["regressed"]  # one cell does not tell its machine


def test_memory_of_the_compiler_is_named_even_if_every_cell_needs_more() -> None:
    verdicts = judge(10, 10, 10, memory=1.3)
    assert statuses(verdicts) == ["regressed"] * 3
    assert verdicts[0].explanation.startswith(
        "Memory of the compiler: more than in the committed baseline: 1 -> 1.3 GiB"
    )


def compiled(seconds: float) -> RunRecord:
    sample = {"name": "compile_cpu_time", "unit": "s", "better": "lower", "values": [seconds]}
    body = record(0).model_dump(mode="json", by_alias=True)
    return RunRecord.model_validate({**body, "samples": [sample]})


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    write_facts(tmp_path, make_facts(CELL, [compiled(10.0)]))
    return tmp_path


def test_the_committed_baseline_is_compared_with_on_its_own_processor_only(baselines: Path) -> None:
    (verdict,) = judge_night_compilers({CELL: [compiled(20.0)]}, POLICIES, baselines, ())
    assert verdict.status == "regressed"
    cpu = compiled(20.0).environment.cpu.model_copy(update={"model": "another"})
    other = compiled(20.0)
    moved = other.model_copy(update={"environment": other.environment.model_copy(update={"cpu": cpu})})
    assert judge_night_compilers({CELL: [moved]}, POLICIES, baselines, ()) == []


def test_without_a_baseline_the_median_of_the_latest_nights_on_this_machine_is_usual(tmp_path: Path) -> None:
    here = compiled(1.0).environment.measured_on
    machines = (here, here, "another machine", here, here)
    history = make_series([9.0, 10.0, 100.0, 11.0, 20.0], f"{CELL}/compile_cpu_time", machines=machines)
    (verdict,) = judge_night_compilers({CELL: [compiled(20.0)]}, POLICIES, tmp_path, [history])
    assert (verdict.status, verdict.effect is not None and verdict.effect.value) == ("regressed", 1.0)


def test_a_policy_without_growth_judges_no_compiler(baselines: Path) -> None:
    silent = Policies.model_validate({"schema": "nightjar.policies/1", "facts": [{}]})
    assert judge_night_compilers({CELL: [compiled(99.0)]}, silent, baselines, ()) == []
