"""Facts are counted from the serialized HLO; its text, parsed independently, must agree."""

import collections
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.measuring.facts import read_facts, tally_module
from nightjar_models.measuring.hlo import parse_module, size_bytes

EMPTY = parse_module(b"")
F32, BF16, U4, TUPLE, TOKEN = 11, 16, 22, 13, 17


def shape(element_type: int, *dimensions: int, parts: list[Any] | None = None) -> Any:
    computation = type(EMPTY)().computations.add()
    made = computation.instructions.add().shape
    made.element_type = element_type
    made.dimensions.extend(dimensions)
    for part in parts or []:
        made.tuple_shapes.add().CopyFrom(part)
    return made


def module(*instructions: tuple[str, Any]) -> Any:
    made = type(EMPTY)()
    computation = made.computations.add()
    for opcode, of in instructions:
        one = computation.instructions.add()
        one.opcode = opcode
        one.shape.CopyFrom(of)
    return made


@pytest.fixture(scope="module")
def compiled() -> jax.stages.Compiled:
    def program(x: jax.Array) -> jax.Array:
        return jnp.sort(jnp.tanh(x @ x) + jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y) @ x, x), axis=0)

    return jax.jit(program).lower(jnp.ones((16, 16))).compile()


def test_opcodes_agree_with_the_text_of_the_module(compiled: jax.stages.Compiled) -> None:
    text = compiled.as_text() or ""
    lines = [line for line in text.splitlines() if re.match(r"\s+(ROOT )?%[\w.-]+ = ", line)]
    opcodes = [re.search(r"[\])}] ([a-z][\w-]*)\(", line) for line in lines]
    expected = collections.Counter(match[1] for match in opcodes if match)
    facts = read_facts("program", compiled)
    assert {name: tally["count"] for name, tally in facts["opcodes"].items()} == expected
    kinds = collections.Counter(re.findall(r"kind=(k\w+)", text))
    assert {name: tally["count"] for name, tally in facts["fusions"].items()} == kinds


def test_memory_and_flops_are_those_of_the_program(compiled: jax.stages.Compiled) -> None:
    facts = read_facts("program", compiled)
    assert facts["memory"]["argument_bytes"] == facts["memory"]["output_bytes"] == 16 * 16 * 4
    assert facts["flops"] > 2 * 16**3


def test_two_compilations_have_equal_facts() -> None:
    found = [read_facts("p", jax.jit(lambda x: jnp.cumsum(x) * 2).lower(jnp.ones(64)).compile()) for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (shape(U4, 5), 3),
        (shape(F32, 0, 8), 0),
        (shape(TOKEN), 0),
        (shape(TUPLE, parts=[shape(F32, 2), shape(TUPLE, parts=[shape(BF16, 3)])]), 14),
    ],
)
def test_size_of_a_value(value: Any, expected: int) -> None:
    assert size_bytes(value) == expected


def test_an_asynchronous_pair_counts_once_with_the_bytes_of_its_result() -> None:
    operand, result = shape(F32, 8), shape(F32, 32)
    pair = module(("all-gather-start", shape(TUPLE, parts=[operand, result])), ("all-gather-done", result))
    assert tally_module([pair])["collectives"] == {"all-gather": {"count": 1, "bytes": 128}}


def test_a_wrapped_asynchronous_collective_counts_once() -> None:
    result = shape(F32, 4)
    wrapped = module(("reduce-scatter", result), ("async-start", result), ("async-done", result))
    assert tally_module([wrapped])["collectives"] == {"reduce-scatter": {"count": 1, "bytes": 16}}


@pytest.mark.parametrize(("flops", "told"), [(-1.0, None), (0.0, 0.0), (7, 7.0)])
def test_flops_below_zero_are_xlas_word_for_unknown(
    compiled: jax.stages.Compiled, flops: float, told: float | None
) -> None:
    assert read_facts("program", compiled, flops)["flops"] == told
