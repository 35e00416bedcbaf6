"""Sizes of HLO shapes.

In: a Shape message. Out: its elements and bytes. A dynamic dimension counts with its upper bound.

Source: openxla/xla:xla/xla_data.proto (PrimitiveType, ShapeProto, LayoutProto)
"""

from __future__ import annotations

from nightjar_profiling.protos import hlo_pb2

# Bits per PrimitiveType, by its number in xla_data.proto. Tuples are summed; tokens and opaque values have no bytes.
ELEMENT_BITS = {
    **dict.fromkeys((30, 31), 1),
    **dict.fromkeys((26, 27), 2),
    **dict.fromkeys((21, 22, 32), 4),
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36), 8),  # floats of 6 bits are not packed
    **dict.fromkeys((3, 7, 10, 16), 16),
    **dict.fromkeys((4, 8, 11), 32),
    **dict.fromkeys((5, 9, 12, 15), 64),
    18: 128,
}
FLOATS = frozenset((10, 11, 12, 15, 16, 18, 19, 20, 23, 24, 25, 28, 29, 32, 33, 35, 36))
HOST_MEMORY = 5
SHOWN_PARTS = 4  # of a tuple
TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1", 31: "u1",
    32: "f4e2m1fn", 33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn",
}  # fmt: skip


def describe_shape(shape: hlo_pb2.Shape) -> str:
    """A shape as XLA writes it, without its layout: `f32[8,128]`; of a tuple the first parts."""
    if shape.tuple_shapes:
        parts = [describe_shape(part) for part in shape.tuple_shapes[:SHOWN_PARTS]]
        if len(shape.tuple_shapes) > SHOWN_PARTS:
            parts.append("...")
        return f"({', '.join(parts)})"
    if shape.element_type not in ELEMENT_BITS:
        return ""
    return f"{TYPES[shape.element_type]}[{','.join(map(str, shape.dimensions))}]"


def count_elements(shape: hlo_pb2.Shape) -> int:
    """Elements of an array, or of all arrays of a tuple."""
    if shape.tuple_shapes:
        return sum(count_elements(part) for part in shape.tuple_shapes)
    if shape.element_type not in ELEMENT_BITS:
        return 0
    elements = 1
    for size in shape.dimensions:
        elements *= max(size, 0)
    return elements


def count_bytes(shape: hlo_pb2.Shape) -> int:
    """Bytes of a dense array, or of all arrays of a tuple."""
    if shape.tuple_shapes:
        return sum(count_bytes(part) for part in shape.tuple_shapes)
    return (count_elements(shape) * ELEMENT_BITS.get(shape.element_type, 0) + 7) // 8


def is_float(shape: hlo_pb2.Shape) -> bool:
    """Whether the elements, in a tuple the first array's, are floating point or complex numbers."""
    while shape.tuple_shapes:
        shape = shape.tuple_shapes[0]
    return shape.element_type in FLOATS


def on_host(shape: hlo_pb2.Shape) -> bool:
    """Whether the array is in host memory."""
    return shape.layout.memory_space == HOST_MEMORY
