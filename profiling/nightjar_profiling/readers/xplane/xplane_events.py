"""The decoder for the events of a plane, fast enough for millions of them.

In: the position of each serialized XEvent in the file, and which stats are wanted. Out: `Events`, one array for each
field.

A trace has few layouts: events with equal field numbers, equal stats and numbers of equal size. So the decoder reads
only one event of each layout field by field. For all other events of that layout it takes the same bytes as columns. It
finds which events may share a layout from their length and the top bits of their bytes, and then checks that byte by
byte. So the result equals the output of a decoder that reads one event after the other.

Source: openxla/xla:third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import (
    DELIMITED,
    FIXED64,
    VARINT,
    Bytes,
    Positions,
    WireError,
    read_fields,
    read_varint,
)

# Numbers of the oneof of an XStat; the kind of a value is its number, 0 if there is none.
DOUBLE, UINT64, INT64, TEXT, BINARY, REFERENCE = 2, 3, 4, 5, 6, 7
EVENT_FIELDS = {1: "metadata_id", 2: "offset_ps", 3: "duration_ps"}
FEW = 4  # events of one layout, below which decoding each alone is faster
TRIES = 8  # layouts looked for among events that look alike, before the rest is decoded one by one
PIECE = 1 << 15  # events at a time, so that the data stays in the processor's cache
# Of a varint of more bytes than the first number: which bits move down, and by how many, to close the gaps of top bits.
PAIRS = ((1, 0x7F007F007F007F00, 1), (2, 0x3FFF00003FFF0000, 2), (4, 0x0FFFFFFF00000000, 4))
FIRST_BITS = np.array([(1 << number) - 1 for number in range(57)], np.uint64)

Words = NDArray[np.uint64]  # (words of an event, events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One stat of all events: `kind` as above, `value` an integer, the bits of a double, or the number of a text."""

    kind: NDArray[np.uint8]
    value: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The events of a plane, in the order of the file.

    Attributes:
        texts: values of kind TEXT and BINARY, which `Stat.value` counts from 0.
    """

    metadata_id: Positions
    offset_ps: Positions
    duration_ps: Positions
    stats: Mapping[str, Stat]
    texts: list[bytes]


@dataclass(frozen=True, slots=True)
class _Slot:
    """A value inside an event: its column, kind (0 for a field of the event itself), and which bytes it takes."""

    column: str
    kind: int
    start: int
    end: int


@dataclass(slots=True)
class _Layout:
    """The bytes that all events of a layout share, and the slots in which they differ."""

    data: bytes
    mask: bytearray  # of the bits that are shared
    slots: list[_Slot] = field(default_factory=list)


def decode_events(data: Bytes, starts: Positions, ends: Positions, wanted: Mapping[int, str]) -> Events:
    """Decodes events.

    Args:
        starts: offset of each event's contents.
        wanted: name by metadata id of the stats to decode.
    """
    count = len(starts)
    columns = {name: np.zeros(count, np.int64) for name in (*EVENT_FIELDS.values(), *wanted.values())}
    texts: dict[bytes, int] = {}
    layouts: list[_Layout] = [_Layout(b"", bytearray())]  # an event without a single field: all zeros
    layout_of = np.zeros(count, np.int32)

    def fill(layout: _Layout, rows: NDArray[np.void], words: Words, events: Positions) -> None:
        for slot in layout.slots:
            columns[slot.column][events] = _pick(rows, words, slot, texts)
        layout_of[events] = len(layouts)
        layouts.append(layout)

    for group in _group(data, starts, ends):
        size = int(ends[group[0]] - starts[group[0]])
        if not size:
            continue
        windows = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
        for events in (group[at : at + PIECE] for at in range(0, len(group), PIECE)):
            rows = windows[starts[events]]
            words = _words(rows)
            for _ in range(TRIES):
                if len(rows) < FEW:
                    break
                layout = _read_layout(rows[0].tobytes(), wanted)
                alike = _compare(words, layout)
                if alike.all():
                    fill(layout, rows, words, events)
                    rows = rows[:0]
                    break
                fill(layout, rows[alike], words[:, alike], events[alike])
                rows, words, events = rows[~alike], words[:, ~alike], events[~alike]
            for number in range(len(rows)):
                row = slice(number, number + 1)
                fill(_read_layout(rows[number].tobytes(), wanted), rows[row], words[:, row], events[row])
    kinds = [{slot.column: slot.kind for slot in layout.slots} for layout in layouts]
    stats = {}
    for name in wanted.values():
        of_layout = np.array([kind.get(name, 0) for kind in kinds], np.uint8)
        stats[name] = Stat(kind=of_layout.take(layout_of), value=columns[name])
    fields = {name: columns[name] for name in EVENT_FIELDS.values()}
    return Events(**fields, stats=stats, texts=list(texts))


def _group(data: Bytes, starts: Positions, ends: Positions) -> Iterator[Positions]:
    """Groups events of one length whose numbers probably take equally many bytes."""
    if not len(starts):
        return
    low, high = int(starts.min()), int(ends.max())
    top_bits = np.zeros((high - low) // 8 + 16, np.uint8)
    for at in range(low, high, PIECE * 8):
        part = np.packbits(data[at : min(at + PIECE * 8, high)] >= 0x80, bitorder="little")
        top_bits[(at - low) // 8 : (at - low) // 8 + len(part)] = part
    words = np.ndarray((len(top_bits) - 7,), "<u8", top_bits, strides=(1,))
    lengths, keys = ends - starts, np.empty(len(starts), np.uint16)
    for at in range(0, len(starts), PIECE):
        start, length = starts[at : at + PIECE] - low, lengths[at : at + PIECE]
        key = length.astype(np.uint64)
        for first in range(0, min(int(length.max()), 4 * 56), 56):  # a word holds at least 57 bits from any bit on
            here = start + np.minimum(length, first) if first else start
            bits = words[here >> 3] >> (here & 7).view(np.uint64)
            bits &= FIRST_BITS.take(length - first, mode="clip")
            key *= np.uint64(0x9E3779B97F4A7C15)
            key += bits
        key *= np.uint64(0xC2B2AE3D27D4EB4F)
        keys[at : at + PIECE] = key >> np.uint64(48)
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys.take(order))) + 1
    for same_key, sizes in zip(np.split(order, bounds), np.split(lengths.take(order), bounds), strict=True):
        if (sizes == sizes[0]).all():
            yield same_key
            continue
        for size in np.unique(sizes).tolist():
            yield same_key[sizes == size]


def _words(rows: NDArray[np.void]) -> Words:
    """The bytes of rows as numbers of eight bytes: the first of all rows, the second of all, and so on."""
    size = rows.itemsize
    words = np.zeros((-(-size // 8), len(rows)), np.uint64)
    for number in range(size // 8):
        words[number] = np.ndarray((len(rows),), "<u8", rows, 8 * number, (size,))
    if size % 8 and size > 8:
        words[-1] = np.ndarray((len(rows),), "<u8", rows, size - 8, (size,)) >> np.uint64(64 - size % 8 * 8)
    elif size % 8:
        words.view(np.uint8).reshape(-1, 8)[:, :size] = rows.view(np.uint8).reshape(-1, size)
    return words


def _compare(words: Words, layout: _Layout) -> NDArray[np.bool_]:
    """Which rows have the bytes that a layout prescribes."""
    different, difference = np.zeros_like(words[0]), np.empty_like(words[0])
    for number, word in enumerate(words):
        part = slice(8 * number, 8 * number + 8)
        mask = int.from_bytes(layout.mask[part], "little")
        if mask:
            np.bitwise_xor(word, np.uint64(int.from_bytes(layout.data[part], "little")), out=difference)
            difference &= np.uint64(mask)
            different |= difference
    return np.asarray(different == 0)


def _pick(rows: NDArray[np.void], words: Words, slot: _Slot, texts: dict[bytes, int]) -> Positions:
    if slot.kind in (TEXT, BINARY):
        cut = rows.view(np.uint8).reshape(len(rows), rows.itemsize)[:, slot.start : slot.end]
        return np.array([texts.setdefault(text.tobytes(), len(texts)) for text in cut], np.int64)
    word = _word_at(words, slot.start, slot.end)
    if slot.kind == DOUBLE:
        return word.view(np.int64)
    value = _squeeze(word, slot.end - slot.start)
    if slot.end - slot.start > 8:
        value |= _squeeze(_word_at(words, slot.start + 8, slot.end), slot.end - slot.start - 8) << np.uint64(56)
    return value.view(np.int64)


def _word_at(words: Words, start: int, end: int) -> NDArray[np.uint64]:
    """Up to eight bytes of each row from that offset on, and any bytes behind them."""
    number, at = divmod(start, 8)
    word: NDArray[np.uint64] = words[number] >> np.uint64(8 * at)
    if end > 8 * number + 8 and at:
        word |= words[number + 1] << np.uint64(64 - 8 * at)
    return word


def _squeeze(word: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """The value of the varint in the first bytes of each word: seven bits of each byte, pushed together in pairs."""
    word &= np.uint64(0x7F7F7F7F7F7F7F7F >> 8 * max(0, 8 - size))
    for needed, high, shift in PAIRS:
        if size > needed:  # the upper half of each pair moves down
            upper = word & np.uint64(high)
            word ^= upper
            upper >>= np.uint64(shift)
            word |= upper
    return word


def _read_layout(data: bytes, wanted: Mapping[int, str]) -> _Layout:
    layout = _Layout(data, bytearray(b"\xff" * len(data)))
    for number, wire, start, end in read_fields(data, 0, len(data)):
        if number == 4 and wire == DELIMITED:
            _read_stat(layout, start, end, wanted)
            continue
        _free(layout, wire, start, end)
        if number in EVENT_FIELDS and wire == VARINT:
            layout.slots.append(_Slot(EVENT_FIELDS[number], 0, start, end))
        elif number in EVENT_FIELDS or number == 4:
            raise WireError(f"field {number} of an event is of wire type {wire}")
    return layout


def _read_stat(layout: _Layout, start: int, end: int, wanted: Mapping[int, str]) -> None:
    metadata_id, value = 0, None
    for number, wire, first, last in read_fields(layout.data, start, end):
        if number == 1 and wire == VARINT:
            metadata_id = read_varint(layout.data, first, last)[0]
            continue
        _free(layout, wire, first, last)
        if DOUBLE <= number <= REFERENCE:
            expected = {DOUBLE: FIXED64, TEXT: DELIMITED, BINARY: DELIMITED}.get(number, VARINT)
            if wire != expected:
                raise WireError(f"field {number} of a stat is of wire type {wire}")
            value = (number, first, last)
    if value is not None and metadata_id in wanted:
        layout.slots.append(_Slot(wanted[metadata_id], *value))


def _free(layout: _Layout, wire: int, start: int, end: int) -> None:
    """Only the bits that mark the end of a varint are shared."""
    layout.mask[start:end] = (b"\x80" if wire == VARINT else b"\0") * (end - start)


def double_of(bits: int) -> float:
    """The double of the bits that a column holds.

    >>> double_of(0x3FF8000000000000)
    1.5
    """
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
