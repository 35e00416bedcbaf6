import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.run_record import Facts
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.facts.diff import changed, diff_lines
from nightjar_ci.judges.facts.facts import KnownFacts, judge_facts
from tests.ci.nights import CELL, program_facts, record, tally

EXACT = FactsPolicy()
UNFUSED = {
    "fusions": {"kLoop": tally(177)},
    "opcodes": {"dot": tally(24), "fusion": tally(177), "add": tally(30)},
    "memory": program_facts()["memory"] | {"temp_bytes": 193_000},
}


def facts(**changes: Any) -> Facts:
    return Facts.model_validate(program_facts(**changes))


def judge(policy: FactsPolicy = EXACT, known: KnownFacts | None = None, **changes: Any) -> Verdict:
    before = KnownFacts(facts=(facts(),), source="the committed baseline", flags={}) if known is None else known
    return judge_facts(
        CELL, "train_step", [record(seed, facts=[program_facts(**changes)]) for seed in (0, 1)], before, policy
    )


def test_equal_facts_are_ok() -> None:
    verdict = judge()
    assert verdict.status == "ok"
    assert verdict.series == f"{CELL}/train_step"
    assert verdict.n == 2


def test_a_fusion_turned_off_is_a_regression_that_says_what_changed() -> None:
    verdict = judge(**UNFUSED)
    assert verdict.status == "regressed"
    assert "fusion kLoop 76 -> 177 (+101)" in verdict.details
    assert "temp bytes 100,000 -> 193,000 (+93 %)" in verdict.details
    assert "unchanged: dot 24" in verdict.details
    assert "not compiled as in the committed baseline: fusion kLoop 76 -> 177 (+101)" in verdict.explanation


def test_fewer_fusions_are_a_regression_too() -> None:
    verdict = judge(fusions={"kLoop": tally(60)})
    assert verdict.status == "regressed"
    assert "fusion kLoop 76 -> 60 (-16)" in verdict.explanation


def test_a_custom_call_that_vanished_and_a_collective_that_appeared_are_named() -> None:
    before = facts(custom_calls={"__cudnn$fmhaSoftmax": tally(4)})
    after = facts(collectives={"all-reduce": tally(2)})
    assert diff_lines(before, after, EXACT) == [
        "collective all-reduce 0 -> 2 (+2)",
        "collective all-reduce output bytes 0 -> 2,048",
        "custom call __cudnn$fmhaSoftmax 4 -> 0 (-4)",
    ]


def test_a_change_within_the_declared_tolerance_is_ok() -> None:
    memory = program_facts()["memory"] | {"temp_bytes": 101_000, "generated_code_bytes": 9999}
    policy = FactsPolicy(tolerance={"memory.generated_code_bytes": math.inf, "memory.*": 0.02})
    assert judge(policy, memory=memory).status == "ok"
    assert judge(memory=memory).status == "regressed"


def test_bytes_that_change_while_the_count_stays_are_named() -> None:
    opcodes = {"dot": tally(24, 48_000), "fusion": tally(76), "add": tally(30)}
    assert diff_lines(facts(), facts(opcodes=opcodes), EXACT) == ["dot output bytes 24,576 -> 48,000 (+95.3 %)"]


def test_a_program_that_vanished_is_a_regression() -> None:
    before = KnownFacts(facts=(facts(), facts(program="eval_step")), source="the committed baseline")
    verdict = judge_facts(CELL, "eval_step", [record(0)], before, EXACT)
    assert verdict.status == "regressed"
    assert "it vanished" in verdict.explanation
    appeared = judge_facts(CELL, "train_step", [record(0)], replace(before, facts=()), EXACT)
    assert appeared.status == "regressed"
    assert "it appeared" in appeared.explanation
    assert judge_facts(CELL, "absent", [record(0)], before, EXACT).status == "ok"


def test_replicates_that_were_compiled_differently_are_a_regression() -> None:
    runs = [record(0), record(1, facts=[program_facts(flops=2e9)])]
    verdict = judge_facts(CELL, "train_step", runs, KnownFacts(facts=(facts(),), source="the baseline"), EXACT)
    assert verdict.status == "regressed"
    assert f"{CELL}-s1 and {CELL}-s0 were compiled differently" in verdict.explanation


def test_without_a_baseline_it_cannot_tell_and_says_how_to_make_one() -> None:
    verdict = judge_facts(CELL, "train_step", [record(0, jaxlib="0.12.0")], None, EXACT)
    assert verdict.status == "cannot_tell"
    assert "There is no baseline for jaxlib-0.12.0-cpu-x1" in verdict.explanation
    assert "nightjar-ci baseline MATRIX" in verdict.explanation


def test_a_flag_that_differs_from_the_baseline_is_evidence() -> None:
    known = KnownFacts(facts=(facts(),), source="the committed baseline", flags={"XLA_FLAGS": "--a"})
    assert "flag XLA_FLAGS: --a -> absent" in judge(known=known, **UNFUSED).details


@given(st.dictionaries(st.sampled_from(["dot", "add", "fusion"]), st.integers(0, 500), min_size=1))
def test_facts_differ_exactly_if_a_number_differs(counts: dict[str, int]) -> None:
    other = facts(opcodes={name: tally(count) for name, count in counts.items()})
    one = facts()
    kinds = {*one.opcodes, *other.opcodes}
    none = dict.fromkeys(kinds, 0)
    same = none | {k: t.count for k, t in one.opcodes.items()} == none | {k: t.count for k, t in other.opcodes.items()}
    assert (not changed(one, other, EXACT)) is same
    assert bool(changed(one, other, EXACT)) is bool(changed(other, one, EXACT))


def test_a_number_that_becomes_nan_is_a_change() -> None:
    assert changed(facts(), facts(flops=math.nan), EXACT).keys() == {"flops"}


def test_the_effect_is_how_much_more_there_is_now() -> None:
    verdict = judge(flops=3e9)
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(1.0)
    assert verdict.effect.unit == "flops"
