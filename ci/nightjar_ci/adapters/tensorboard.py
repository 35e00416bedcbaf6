"""Reader for the scalars of TensorBoard event files, without TensorBoard: a heavy package for a small format.

In: an event file (TFRecords of `Event` messages). Out: records with `step` and one field per tag: scalars in the old
form (`simple_value`) and tensors of one number. Images, histograms and text are skipped.

Source: tensorflow/core/lib/io/record_writer.h (framing and masked CRC32C); tensorflow/core/util/event.proto;
tensorflow/core/framework/{summary,tensor,types}.proto; protobuf.dev/programming-guides/encoding (wire format).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from nightjar_ci.adapters.records import CutFileError, Record, read_file
from nightjar_ci.errors import InputError

_TRUNCATED_HINT = "its writer may have been killed before it closed the file"
_LARGEST_CHECKED = 1 << 16  # bytes; a longer record is not a scalar, and Python needs 0.1 s to check a megabyte
_DTYPES: Final = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 14: "bf16", 19: "<f2"}
# tensor.proto: which field holds the values of a type if tensor_content is empty
_FLOATS, _DOUBLES, _INTS, _LONGS, _BOOLS, _HALVES = 5, 6, 7, 10, 11, 13
# of a protobuf message by number: varints as integers, other types as bytes
Fields = dict[int, list["int | bytes"]]


def read_events(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The scalars of an event file, in file order."""
    for number, event in enumerate(_records(path, read_file(path, left_in)), start=1):
        source = f"{path}: record {number}"
        try:
            message = parse_message(event)
            summaries = [value for summary in bytes_of(message, 5) for value in bytes_of(parse_message(summary), 1)]
            scalars = dict(scalar for value in summaries if (scalar := _read_value(parse_message(value))) is not None)
        except (ValueError, IndexError, struct.error) as error:
            raise InputError(f"{source}: not a valid Event message: {error}.", "pass an event file") from None
        if scalars:
            yield Record(source=source, fields={"step": integer_of(message, 2), **scalars})


def checksum(data: bytes) -> int:
    """The masked CRC32C of TFRecords.

    >>> hex(checksum(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE: Final = _make_table()


def _records(path: Path, data: bytes) -> Iterator[bytes]:
    """The payloads of TFRecords: length, its checksum, the payload, its checksum."""
    offset, number = 0, 0
    while offset < len(data):
        number += 1
        source, header = f"{path}: record {number} at byte {offset}", data[offset : offset + 12]
        if len(header) < 12:
            raise CutFileError(f"{source}: the file is incomplete.", _TRUNCATED_HINT)
        length, check = struct.unpack("<QI", header)
        if check != checksum(header[:8]):
            raise InputError(f"{source}: damaged, or not a TensorBoard event file.")
        end = offset + 12 + length
        payload, tail = data[offset + 12 : end], data[end : end + 4]
        if len(tail) < 4:
            raise CutFileError(f"{source}: the file is incomplete.", _TRUNCATED_HINT)
        if length <= _LARGEST_CHECKED and struct.unpack("<I", tail)[0] != checksum(payload):
            raise InputError(f"{source}: damaged: its checksum is wrong.")
        yield payload
        offset = end + 4


def _read_value(fields: Fields) -> tuple[str, float] | None:
    """Tag and number of a Summary.Value; None if it is not a number."""
    tag = next(bytes_of(fields, 1), b"").decode("utf-8", errors="replace")
    if (simple := next(bytes_of(fields, 2), None)) is not None:
        return tag, float(struct.unpack("<f", simple)[0])
    if (tensor := next(bytes_of(fields, 8), None)) is not None:
        values = _tensor(parse_message(tensor))
        if values is not None and values.size == 1:
            return tag, float(values.reshape(-1)[0])
    return None


def _tensor(fields: Fields) -> npt.NDArray[np.floating] | None:
    """The numbers of a TensorProto; None if its type is not numeric."""
    kind = next((value for value in fields.get(1, []) if isinstance(value, int)), 0)
    if (dtype := _DTYPES.get(kind)) is None:
        return None
    content = b"".join(bytes_of(fields, 4))
    if content:
        if dtype == "bf16":
            return _bfloats(np.frombuffer(content, "<u2"))
        return np.frombuffer(content, dtype) * 1.0
    for number, packed in ((_FLOATS, "<f4"), (_DOUBLES, "<f8")):
        if number in fields:
            return np.frombuffer(b"".join(bytes_of(fields, number)), packed) * 1.0
    for number in (_INTS, _LONGS, _BOOLS, _HALVES):
        if number in fields:
            integers = np.array(list(_integers(fields[number])), dtype=np.uint64)
            if number == _HALVES:
                bits = integers.astype("<u2")
                if dtype == "bf16":
                    return _bfloats(bits)
                return bits.view("<f2") * 1.0
            return integers.astype(np.int64) * 1.0
    return np.zeros(1)  # protobuf omits a zero


def _integers(values: list[int | bytes]) -> Iterator[int]:
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        offset = 0
        while offset < len(value):
            integer, offset = parse_varint(value, offset)
            yield integer


def _bfloats(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.floating]:
    return (bits.astype("<u4") << 16).view("<f4") * 1.0


def parse_message(data: bytes) -> Fields:
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
    return (value for value in fields.get(number, []) if isinstance(value, bytes))


def integer_of(fields: Fields, number: int) -> int:
    """The first varint of a field, as a signed 64-bit number; protobuf leaves out a zero."""
    value = next((value for value in fields.get(number, []) if isinstance(value, int)), 0)
    if value >> 63:
        value -= 1 << 64
    return value
