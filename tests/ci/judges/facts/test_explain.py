"""Explanations: each kind of change of a compiled program gives its sentence."""

import math
from typing import Any

import pytest

from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.run_record import Environment, Facts
from nightjar_ci.judges.facts.diff import COMPUTATION, changed
from nightjar_ci.judges.facts.explain import explain_changes, unexplained

GIB = 2**30


def work(runs: int, moved: int = 0, flops: float = 0.0) -> dict[str, Any]:
    return {"count": runs, "runs": runs, "bytes": moved, "flops": flops}


def facts(kernels: dict[str, Any] | None = None, messages: dict[str, Any] | None = None, **changes: Any) -> Facts:
    base = {
        "cuBLASLt": work(20, 40 * GIB, 1e12),
        "cuDNN attention": work(12, GIB, 2e11),
        "loop fusion": work(100, 10 * GIB),
        "copy": work(4),
    }
    ahead = {
        "target": "h100x8",
        "fingerprint": "0",
        "kernels": {kind: one for kind, one in {**base, **(kernels or {})}.items() if one is not None},
        "messages": {"all-gather/8": work(8, GIB)} if messages is None else messages,
        "buffers": (),
        "reserved_bytes": 40 * GIB,
        "device_bytes": 79 * GIB,
        "code_bytes": 1000,
        "spill_bytes": None,
        "estimate": {"step_s": 0.1},
        "lints": (),
        **changes,
    }
    names = ("argument", "output", "alias", "temp", "generated_code", "peak")
    return Facts.model_validate(
        {
            "program": "train_step",
            **{group: {} for group in ("opcodes", "fusions", "custom_calls", "collectives")},
            "flops": 1e12,
            "memory": {f"{name}_bytes": 1 for name in names},
            "ahead": ahead,
        }
    )


def sentences(before: Facts, after: Facts) -> list[str]:
    return [meaning.text for meaning in explain_changes(before, after, FactsPolicy())]


BUFFER = {"instruction": "fusion.1", "kind": "temp", "bytes": 30 * GIB, "line": "layers.py:70 attend", "op_name": ""}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (facts({"cuDNN attention": None, "Triton matmul": work(24, GIB, 2e11)}), "fused attention lost: 12 -> 0 runs"),
        (facts(messages={"all-gather/8": work(8, GIB), "all-gather/2": work(1, GIB)}), "a new all-gather among 2"),
        (facts(messages={"all-gather/8": work(9, 2 * GIB)}), "a new all-gather among 8 devices: 8 -> 9 runs"),
        (facts({"loop fusion": work(140, 14 * GIB)}), "fusions were split: 100 -> 140 runs"),
        (facts({"cuBLASLt": work(26, 52 * GIB, 1.3e12)}), "more is recomputed in the backward pass"),
        (facts({"cuBLASLt": work(20, 60 * GIB, 1e12)}), "in a wider type"),
        (facts(reserved_bytes=70 * GIB, buffers=(BUFFER,)), "peak memory +75 %: 40.00 GiB -> 70.00 GiB; the largest"),
        (facts(reserved_bytes=90 * GIB), "it no longer fits into the 79.00 GiB of a device"),
        (facts(code_bytes=900), "code of the kernels -10 %"),
        (facts({"custom fusion cuBLASLt fp8": None, "cuDNN attention": work(14, GIB, 2e11)}), "gained: 12 -> 14 runs"),
        (facts(messages={}), "no all-gather among 8 devices any more: it ran 8 times, 1.00 GiB a step"),
        (
            facts(messages={"all-gather/8": work(8, 2 * GIB)}),
            ": 8 -> 8 runs, 1.00 GiB -> 2.00 GiB a step",
        ),
        (
            facts({"cuDNN attention": None, "cuBLASLt": work(20, 40 * GIB, 2e12)}),
            "attention that is not fused",
        ),
        (facts({"cuBLASLt": work(20, 40 * GIB, 5e11)}), "less is recomputed in the backward pass"),
        (facts({"cuBLASLt": work(20, 30 * GIB, 1e12)}), "in a narrower type"),
        (facts({"loop fusion": work(60, 10 * GIB)}), "fewer fusions: merged or removed: 100 -> 60 runs a step"),
        (facts(reserved_bytes=20 * GIB), "peak memory -50 %: 40.00 GiB -> 20.00 GiB"),
        (facts({"loop fusion": work(99)}, estimate={"step_s": 0.2}), "step time changed by +100 %: 100 -> 200 ms"),
        (facts(lints=("involuntary full rematerialization: 2 times",)), "a new lint: involuntary"),
    ],
)
def test_a_change_is_named(after: Facts, said: str) -> None:
    assert any(said in sentence for sentence in sentences(facts(), after))


def test_the_largest_new_value_is_an_argument_by_name_or_a_temporary_value_by_line() -> None:
    held = {**BUFFER, "kind": "argument", "line": "", "op_name": "state.parameters[embedding]"}
    before = facts(buffers=({**held, "bytes": 40 * GIB},))
    after = facts(reserved_bytes=70 * GIB, buffers=({**held, "bytes": 40 * GIB}, BUFFER, {**held, "bytes": 9 * GIB}))
    assert sentences(before, after)[0].endswith("the largest new value is 30.00 GiB of layers.py:70 attend")
    assert sentences(after, facts(reserved_bytes=80 * GIB, buffers=(held,)))[0].endswith("state.parameters[embedding]")


def test_a_value_is_not_new_because_its_line_moved_but_is_where_there_is_one_more() -> None:
    moved, other = {**BUFFER, "line": "layers.py:72 attend"}, {**BUFFER, "line": "gpt.py:9 step", "bytes": GIB}
    before = facts(buffers=(BUFFER,))
    assert sentences(before, facts(reserved_bytes=70 * GIB, buffers=(moved, other)))[0].endswith("of gpt.py:9 step")
    assert sentences(before, facts(reserved_bytes=70 * GIB, buffers=(moved,)))[0].endswith("-> 70.00 GiB")
    twice = sentences(before, facts(reserved_bytes=70 * GIB, buffers=(moved, moved, other)))
    assert twice[0].endswith("the largest new value is 30.00 GiB of layers.py:72 attend")


def test_an_fp8_product_that_fell_back_is_named_with_what_computes_it_now() -> None:
    before = facts({"cuBLASLt f8": work(10, GIB, 1e11)})
    after = facts({"cuBLASLt": work(30, 41 * GIB, 1.1e12)})
    assert sentences(before, after)[0] == "fp8 matmul fell back: 10 -> 0 runs a step, cuBLASLt +10"


def test_a_recipe_that_is_lost_is_an_fp8_product_that_fell_back_and_one_product_for_another_is_not() -> None:
    scaled, plain = "TransformerEngine matmul scaled", "TransformerEngine matmul"
    before, after = facts({scaled: work(84, GIB, 1e11)}), facts({plain: work(84, 2 * GIB, 1e11)})
    assert sentences(before, after)[0] == f"fp8 matmul fell back: 84 -> 0 runs a step, {plain} +84"
    products = facts({"Triton matmul": work(84, 2 * GIB, 1e11)})
    assert not any("fp8" in sentence for sentence in sentences(products, after))


def test_equal_programs_say_nothing_and_programs_of_a_device_have_no_kinds_to_speak_of() -> None:
    assert sentences(facts(), facts()) == []
    plain = facts().model_copy(update={"ahead": None})
    assert sentences(plain, facts()) == []
    assert changed(facts(), facts(), FactsPolicy()) == {}


def test_programs_compiled_ahead_of_time_are_compared_across_releases() -> None:
    def key(jaxlib: str, device: str) -> str:
        cpu = {"model": "x", "cores": 2, "memory_bytes": 1}
        return Environment.model_validate(
            {
                **{"python": "3.11", "platform": "linux", "cpu": cpu, "backend": "gpu", "devices": [device] * 8},
                **{"packages": {"jaxlib": jaxlib}, "flags": {}, "git": None, "image": None},
            }
        ).facts_key

    assert key("0.10.1", "NVIDIA B200 (ahead of time)") == key("0.10.2", "NVIDIA B200 (ahead of time)")
    assert key("0.10.1", "NVIDIA B200") != key("0.10.2", "NVIDIA B200")


def test_a_state_that_is_no_longer_split_is_named() -> None:
    sizes = facts().memory.model_copy(update={"argument_bytes": 8})
    after = facts().model_copy(update={"memory": sizes})
    assert sentences(facts(), after) == [
        "parameters, optimizer and batch take +700 % on each device: split over fewer devices, or larger"
    ]


def test_spills_that_a_machine_without_ptxas_does_not_count_are_no_difference() -> None:
    assert changed(facts(spill_bytes=None), facts(spill_bytes=16), FactsPolicy()) == {}
    assert changed(facts(spill_bytes=0), facts(spill_bytes=16), FactsPolicy()) == {"ahead.spill_bytes": math.inf}
    assert sentences(facts(spill_bytes=0), facts(spill_bytes=16)) == ["kernels spill registers: 0 -> 16 bytes"]
    assert sentences(facts(spill_bytes=16), facts(spill_bytes=8)) == ["kernels spill fewer registers: 16 -> 8 bytes"]


def test_a_lint_is_named_when_it_comes_and_when_it_goes() -> None:
    def linted(*lints: str) -> Facts:
        plain = facts()
        assert plain.ahead is not None
        return plain.model_copy(update={"ahead": plain.ahead.model_copy(update={"lints": lints})})

    assert sentences(linted("stays", "goes"), linted("stays", "comes")) == [
        "a new lint: comes",
        "no longer a lint: goes",
    ]


def test_what_no_sentence_accounts_for_is_left_over() -> None:
    tally = {"count": 3, "bytes": 12}
    tallies = {"opcodes": {"copy": tally, "fusion": tally}, "fusions": {"kLoop": tally}, "flops": 2e12}
    moved = {"loop fusion": work(36, 4 * GIB), "custom fusion dynamic_slice_fusion": work(64, 6 * GIB)}
    after = Facts.model_validate({**facts(moved).model_dump(), **tallies})
    changes = changed(facts(), after, FactsPolicy())
    found = explain_changes(facts(), after, FactsPolicy())
    assert [meaning.text for meaning in found] == [
        "64 runs a step of loop fusion are now custom fusion dynamic_slice_fusion",
        "the changed kernels consist of other instructions: copy",
    ]
    assert unexplained(changes, found) == ["flops"]
    # Without another kernel there is no cause for other instructions.
    alone = Facts.model_validate({**facts().model_dump(), **tallies})
    assert set(unexplained(changed(facts(), alone, FactsPolicy()), explain_changes(facts(), alone, FactsPolicy()))) == {
        *("flops", "fusions.kLoop.count", "fusions.kLoop.bytes"),
        *(f"opcodes.{opcode}.{number}" for opcode in ("copy", "fusion") for number in ("count", "bytes")),
    }


def test_the_same_counts_of_another_computation_are_a_change_under_one_compiler_only() -> None:
    before = facts(computation="jaxlib 0.10.2: aa")
    after, newer = facts(computation="jaxlib 0.10.2: bb"), facts(computation="jaxlib 0.11.0: bb")
    assert changed(before, after, FactsPolicy()) == {COMPUTATION: math.inf}
    assert changed(before, newer, FactsPolicy()) == {}
    assert changed(facts(), after, FactsPolicy()) == {}  # a baseline of an earlier release
    assert changed(before, after, FactsPolicy(tolerance={"ahead.comp*": math.inf})) == {}


def test_another_computation_is_not_told_beside_other_facts() -> None:
    before = facts(computation="jaxlib 0.10.2: aa")
    after = facts(computation="jaxlib 0.10.2: bb", code_bytes=900)
    assert list(changed(before, after, FactsPolicy())) == ["ahead.code_bytes"]


def test_single_operations_are_counted_beside_the_fusions_that_they_left() -> None:
    kernels = {"loop fusion": work(90, 9 * GIB), "copy": work(6), "other add": work(3), "cuBLASLt": work(21, 42 * GIB)}
    (sentence,) = (text for text in sentences(facts(), facts(kernels)) if "fusions" in text)
    assert sentence.startswith("fewer fusions: merged or removed: 100 -> 90 runs a step, +5 single operations,")
