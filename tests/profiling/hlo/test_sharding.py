import pytest

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
