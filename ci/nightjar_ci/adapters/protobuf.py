"""Protobuf messages without their classes: for other programs' files with a few relevant fields.

In: the bytes of a message. Out: its fields by number, varints as integers and other types as bytes.

Source: protobuf.dev/programming-guides/encoding (wire format).
"""

from __future__ import annotations

from collections.abc import Iterator

Fields = dict[int, list["int | bytes"]]


def parse_message(data: bytes) -> Fields:
    """The fields of a message."""
    fields: Fields = {}
    offset = 0
    while offset < len(data):
        key, offset = parse_varint(data, offset)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == 0:
            value, offset = parse_varint(data, offset)
        elif kind in (1, 2, 5):
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, offset = parse_varint(data, offset)
            value, offset = data[offset : offset + size], offset + size
        else:
            raise ValueError(f"wire type {kind}")
        if offset > len(data):
            raise ValueError("a field exceeds its message")
        fields.setdefault(number, []).append(value)
    return fields


def parse_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The number at an offset, and the offset behind it."""
    value, shift = 0, 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def bytes_of(fields: Fields, number: int) -> Iterator[bytes]:
    """The values of a field that are messages, texts or fixed-size numbers."""
    return (value for value in fields.get(number, []) if isinstance(value, bytes))


def integer_of(fields: Fields, number: int) -> int:
    """The first varint of a field, as a signed 64-bit number; protobuf leaves out a zero."""
    value = next((value for value in fields.get(number, []) if isinstance(value, int)), 0)
    if value >> 63:
        value -= 1 << 64
    return value
