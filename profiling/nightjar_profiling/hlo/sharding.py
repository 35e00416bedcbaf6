"""How an array is split over the devices of a partitioned program.

In: the `OpSharding` that XLA keeps on parameters and results, or the shape of a value before and after partitioning.
Out: text: `[8,1]` (tiles along each dimension), `replicated`, `one device`, `manual`; empty if unknown.

Source: openxla/xla:xla/xla_data.proto (OpSharding), openxla/xla:xla/hlo/ir/hlo_sharding.h
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nightjar_profiling.protos import hlo_pb2

WORDS = {
    hlo_pb2.OpSharding.REPLICATED: "replicated",
    hlo_pb2.OpSharding.MAXIMAL: "one device",
    hlo_pb2.OpSharding.MANUAL: "manual",
}
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
UNSPLIT = "not split"  # each device holds as many elements as there are in all: replicated, or a partial sum


def read_tiles(sharding: hlo_pb2.OpSharding) -> tuple[int, ...]:
    """Tiles along each dimension of the array; empty unless the array is tiled.

    >>> read_tiles(hlo_pb2.OpSharding(type=3, tile_assignment_dimensions=[4, 1, 2], last_tile_dims=[0]))
    (4, 1)
    """
    if sharding.type != hlo_pb2.OpSharding.OTHER:
        return ()
    tiles = tuple(sharding.tile_assignment_dimensions)
    if sharding.replicate_on_last_tile_dim:
        return tiles[:-1]
    return tiles[: len(tiles) - len(sharding.last_tile_dims)]


def describe_sharding(sharding: hlo_pb2.OpSharding) -> str:
    """The sharding as text; for a tuple, of each part."""
    if sharding.type == hlo_pb2.OpSharding.TUPLE:
        return f"({', '.join(map(describe_sharding, sharding.tuple_shardings))})"
    tiles = read_tiles(sharding)
    if tiles and max(tiles) == 1:
        return WORDS[hlo_pb2.OpSharding.REPLICATED]
    if tiles:
        return write_tiles(tiles)
    return WORDS.get(sharding.type, "")


def write_tiles(tiles: Sequence[int]) -> str:
    """`[8,1]`."""
    return f"[{','.join(map(str, tiles))}]"


def multiply_shape(shape: str, tiles: Sequence[int]) -> str:
    """The shape of the whole array, from the shape on one device; empty if the tiles are not of it.

    >>> multiply_shape("f32[32,256]", (8, 1))
    'f32[256,256]'
    """
    match = ARRAY.fullmatch(shape)
    if match is None:
        return ""
    sizes = [int(size) for size in match[2].split(",") if size]
    if len(sizes) != len(tiles):
        return ""
    return f"{match[1]}{write_tiles([size * tile for size, tile in zip(sizes, tiles, strict=True)])}"


def compare_shapes(whole: str, local: str) -> str:
    """How the array is split, from its shapes before partitioning and on one device; empty if they do not determine it.

    >>> compare_shapes("f32[256,256]", "f32[32,256]"), compare_shapes("f32[8]", "f32[8]"), compare_shapes("f32[8]", "")
    ('[8,1]', 'not split', '')
    """
    before, after = ARRAY.fullmatch(whole), ARRAY.fullmatch(local)
    if before is None or after is None or before[1] != after[1]:
        return ""
    if before[2] == after[2]:
        return UNSPLIT
    sizes = [(int(a), int(b)) for a, b in zip(before[2].split(","), after[2].split(","), strict=False)]
    if len(before[2].split(",")) != len(after[2].split(",")) or any(b == 0 or a % b for a, b in sizes):
        return ""
    return write_tiles([a // b for a, b in sizes])
