"""The judge of differences on runs of a few operations, made by hand: what parts, what is compared, and its class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from nightjar_models.explain.judge import WINDOW, Parting, choose_pairs, classify, find_parting, name_places
from nightjar_models.explain.record import UNDEFINED, Operation, Record

BFLOAT16 = 2.0**-8


def op(place: int = 0, kind: str = "float32[1]", *detail: str, name: str = "mul", of: str = "x") -> Operation:
    return Operation(
        place=place, name=name, text=f"{name} {place}", types=(kind,), detail=detail, operands=(of,), results=(name,)
    )


def judge(left: Operation, right: Operation, differences: Sequence[float], end: float) -> tuple[str, Any]:
    """The kind and relative size, of operations that differ by so much from 1, and a result that does."""
    ones = {number: np.ones(1, np.float32) for number in range(len(differences))}
    others = {number: np.array([1.0 - size]) for number, size in enumerate(differences)}
    ours, theirs = (
        Record(operations=(), arguments=(), results=(), kept=kept, values=values)
        for kept, values in ((ones, (np.ones(1, np.float32),)), (others, (np.array([1.0 - end]),)))
    )
    parting = Parting(left=(left,), right=(right,), first_left=left, first_right=right)
    found = classify(parting, [(number, number) for number in ones], ours, theirs, "loss")
    return found.kind, found.relative and round(found.relative, 9)


SAME, COARSE = (op(), op(name="add")), (op(), op(0, "bfloat16[1]", name="add"))


@pytest.mark.parametrize(
    ("sides", "differences", "end", "expected"),
    [
        (SAME, [64 * 2.0**-52], 1.0, ("rounding", 0)),  # in units of the finer type, here float64
        (SAME, [65 * 2.0**-52], 1.0, ("fault", 0)),
        (SAME, [0.5], 64 * 2.0**-52, ("rounding", 0)),  # all results do
        (SAME, [0.03], 1.0, ("fault", 0.03)),
        (COARSE, [16 * BFLOAT16], 1.0, ("numerics", 0.0625)),
        (COARSE, [0.063], 1.0, ("fault", 0.063)),
        ((op(0, "float32[1]", "precision=HIGHEST"), op(name="add")), [0.03], 1.0, ("numerics", 0.03)),
        ((op(0, "float32[1]", "axis=1"), op(name="add")), [0.03], 1.0, ("fault", 0.03)),
        ((op(), op(0, "int32[1]", name="add")), [0.03], 1.0, ("fault", None)),
        ((op(0, "float32[1]", "1.0"), op(0, "float32[1]", "2.0")), [0.03], 1.0, ("fault", None)),  # another constant
        ((op(0, "float32[1]", "1.0"), op(0, "float32[1]", "2.0", of="y")), [0.03], 1.0, ("fault", 0.03)),
        ((op(), op(0, "float32[1]", UNDEFINED, name="add")), [0.0], 0.0, (UNDEFINED, 0)),
        (SAME, [0, 0, 0, 0.5, 0.5], 0.07, ("fault", 0)),  # a quarter of the operations, and a result
        (SAME, [0, 0, 0, 0.5, 0.5], 0.06, ("rounding", 0)),
        (SAME, [0, 0, 0, 0, 0.5], 0.07, ("rounding", 0)),
        (SAME, [0.3, 0.2, 0.1], 1.0, ("fault", 0.3)),  # the size is that of the first operation
        (COARSE, [0.01, 0.03, 0.02], 1.0, ("numerics", 0.02)),  # here of the one in the middle
    ],
)
def test_the_kind_and_the_size_of_a_difference(
    sides: tuple[Operation, Operation], differences: list[float], end: float, expected: tuple[str, float | None]
) -> None:
    assert judge(*sides, differences, end) == expected


def test_operations_of_one_shape_that_are_near_each_other_are_compared() -> None:
    left = (op(0), op(1, "float32[2]"))
    right = tuple(op(number, "bfloat16[1]") for number in range(WINDOW + 2))
    pairs = choose_pairs(Parting(left=left, right=right, first_left=None, first_right=None))
    assert pairs == [(0, number) for number in range(WINDOW + 1)]
    last = tuple(op(number) for number in range(WINDOW + 2))
    pairs = choose_pairs(Parting(left=last, right=right, first_left=None, first_right=None))
    assert min(other for number, other in pairs if number == WINDOW + 1) == 1


def test_runs_part_at_the_first_operation_whose_operands_both_have() -> None:
    same, ours, theirs = op(0, of="x", name="same"), op(1, of="same", name="ours"), op(1, of="constant", name="theirs")
    left = Record(operations=(same, ours, op(2, of="ours", name="a")), arguments=("x",), results=("same", "a"))
    right = Record(operations=(same, theirs, op(2, of="theirs", name="b")), arguments=("x",), results=("same", "b"))
    parting = find_parting(left, right)
    assert parting is not None
    assert [one.name for one in (*parting.left, *parting.right)] == ["ours", "a", "theirs", "b"]
    assert (parting.first_left, parting.first_right) == (ours, theirs)
    assert name_places(parting) == ("theirs 1", "ours 1")
    assert find_parting(left, left) is None


def test_the_earlier_of_two_places_comes_first_and_equal_ones_are_told_once() -> None:
    assert name_places(Parting(left=(), right=(), first_left=op(3), first_right=op(7))) == ("mul 3", "mul 7")
    assert name_places(Parting(left=(), right=(), first_left=op(3), first_right=op(3))) == ("mul 3", None)
    assert name_places(Parting(left=(), right=(), first_left=None, first_right=None)) == ("the arguments", None)
