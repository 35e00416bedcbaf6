"""Bytes that one run of an instruction moves, by its kind; of the compiled programs of an H100 see tests/models/aot."""

from typing import Any

import pytest
from jaxlib.xla_client import PrimitiveType

from nightjar_models.measuring.hlo import _classes
from nightjar_models.program.cost import Cost, count_cost
from nightjar_models.program.module import read_module

F32, S32, S8, PRED = 11, 4, 2, 1
WORKSPACE = ((F32, 4), (S8, 1000))


def shape(parts: Any) -> Any:
    """An array of an element type and a size, or a tuple of some."""
    make = _classes()["Shape"]
    if isinstance(parts[0], tuple):
        return make(tuple_shapes=[shape(part) for part in parts])
    return make(element_type=parts[0], dimensions=parts[1:])


@pytest.mark.parametrize(
    ("opcode", "operands", "result", "moved"),
    [
        ("add", [(F32, 10), (F32, 10)], (F32, 10), 3 * 40),
        ("slice", [(F32, 100)], (F32, 10), 2 * 40),
        ("dynamic-slice", [(F32, 100), (S32,)], (F32, 10), 2 * 40 + 4),
        ("gather", [(F32, 100), (S32, 5)], (F32, 5), 2 * 20 + 20),
        ("dynamic-update-slice", [(F32, 100), (F32, 10), (S32,)], (F32, 100), 2 * 40),
        ("scatter", [(F32, 100), (S32, 5), (F32, 5)], (F32, 100), 2 * 20),
        ("copy-start", [(F32, 10)], ((F32, 10), (F32, 10), (S32,)), 2 * 40),
        ("custom-call __cublas$lt$matmul", [(F32, 8), (F32, 8)], WORKSPACE, 16 + 2 * 32),
        ("custom-call mine", [(F32, 8), (F32, 8)], WORKSPACE, 16 + 1000 + 2 * 32),
    ],
)
def test_an_instruction_moves_what_it_reads_and_writes(opcode: str, operands: Any, result: Any, moved: int) -> None:
    assert cost(opcode, operands, result).bytes == moved


def test_arithmetic_is_counted_for_every_floating_point_type_of_xla_and_for_truth_values() -> None:
    wanted = {kind.value for kind in PrimitiveType if kind.name.startswith(("F", "BF", "C"))} | {F32, PRED}
    plain = {kind.value for kind in PrimitiveType if kind.name not in ("PRIMITIVE_TYPE_INVALID", "TUPLE")}
    assert {kind for kind in plain if cost("add", [(kind, 10), (kind, 10)], (kind, 10)).flops == 10} == wanted


def cost(opcode: str, operands: Any, result: Any) -> Cost:
    classes = _classes()
    kind, _, target = opcode.partition(" ")
    given = [
        classes["Instruction"](id=number, name=f"p{number}", opcode="parameter", shape=shape(one))
        for number, one in enumerate(operands, 1)
    ]
    ids = [one.id for one in given]
    root = classes["Instruction"](
        id=99, name="root", opcode=kind, shape=shape(result), operand_ids=ids, custom_call_target=target
    )
    computation = classes["Computation"](id=1, name="main", root_id=99, instructions=[*given, root])
    proto = classes["Hlo"](hlo_module=classes["Module"](id=1, computations=[computation], entry_computation_id=1))
    return count_cost(read_module(proto), root)
