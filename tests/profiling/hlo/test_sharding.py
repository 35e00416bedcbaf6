import re

import pytest

from nightjar_profiling.hlo.shapes import ELEMENT_BITS, FLOATS, TYPES
from nightjar_profiling.hlo.sharding import compare_shapes, describe_sharding, multiply_shape
from nightjar_profiling.protos import hlo_pb2

KIND = hlo_pb2.OpSharding


def test_a_sharding_is_told_in_tiles_or_in_a_word() -> None:
    rows = hlo_pb2.OpSharding(type=KIND.OTHER, tile_assignment_dimensions=[8, 1])
    partial = hlo_pb2.OpSharding(type=KIND.OTHER, tile_assignment_dimensions=[4, 1, 2], replicate_on_last_tile_dim=True)
    alone = hlo_pb2.OpSharding(type=KIND.OTHER, tile_assignment_dimensions=[1, 1, 8], last_tile_dims=[KIND.REPLICATED])
    pair = hlo_pb2.OpSharding(type=KIND.TUPLE, tuple_shardings=[rows, hlo_pb2.OpSharding(type=KIND.REPLICATED)])
    told = [describe_sharding(sharding) for sharding in (rows, partial, alone, pair)]
    assert told == ["[8,1]", "[4,1]", "replicated", "([8,1], replicated)"]
    assert describe_sharding(hlo_pb2.OpSharding(type=KIND.MAXIMAL)) == "one device"
    assert describe_sharding(hlo_pb2.OpSharding(type=KIND.MANUAL)) == "manual"


@pytest.mark.parametrize(
    ("whole", "local", "split"),
    [
        ("f32[256,256]", "f32[32,256]", "[8,1]"),
        ("f32[]", "f32[]", "not split"),
        ("f32[256,256]", "bf16[32,256]", ""),
        ("f32[256,256]", "f32[65536]", ""),
        ("f32[10]", "f32[3]", ""),
        ("f32[10]", "f32[0]", ""),
        ("(f32[8], f32[8])", "(f32[8], f32[8])", ""),
    ],
)
def test_two_shapes_tell_the_split_or_nothing(whole: str, local: str, split: str) -> None:
    assert compare_shapes(whole, local) == split


def test_tiles_of_another_rank_make_no_shape() -> None:
    assert multiply_shape("f32[32]", (8, 1)) == ""
    assert multiply_shape("(f32[32])", (8,)) == ""


NAMES = {
    **{1: "PRED", 2: "S8", 3: "S16", 4: "S32", 5: "S64", 6: "U8", 7: "U16", 8: "U32", 9: "U64"},
    **{10: "F16", 11: "F32", 12: "F64", 15: "C64", 16: "BF16", 18: "C128", 19: "F8E5M2", 20: "F8E4M3FN"},
    **{21: "S4", 22: "U4", 23: "F8E4M3B11FNUZ", 24: "F8E5M2FNUZ", 25: "F8E4M3FNUZ", 26: "S2", 27: "U2"},
    **{28: "F8E4M3", 29: "F8E3M4", 30: "S1", 31: "U1", 32: "F4E2M1FN", 33: "F8E8M0FNU"},
    **{35: "F6E3M2FN", 36: "F6E2M3FN"},
}


@pytest.mark.parametrize("number", NAMES)
def test_an_element_has_the_bits_and_the_kind_of_its_name(number: int) -> None:
    name = NAMES[number]
    bits = re.search(r"\d+", name)
    expected = 8 if bits is None or bits[0] == "6" else int(bits[0])  # six bits take a byte
    assert ELEMENT_BITS[number] == expected
    assert (number in FLOATS) == name.startswith(("F", "BF", "C"))
    assert TYPES[number] == name.lower()


def test_no_other_number_has_a_size_or_a_name() -> None:
    assert ELEMENT_BITS.keys() == NAMES.keys()
    assert TYPES.keys() == NAMES.keys()
