"""What do the events of a plane say, when there are millions of them?

In: where each serialized XEvent lies in the file, and which stats are wanted. Out: `Events`, one array for each field.

A trace has few layouts: events with equal field numbers, equal stats and numbers of equal size. So an event is decoded
field by field only once for each layout; for all others of that layout the same bytes are picked out as columns. Which
events may share a layout is found from their length and the top bits of their bytes, and then checked byte by byte, so
that the result is that of a decoder that reads one event after the other.

Source: openxla/xla:third_party/tsl/tsl/profiler/protobuf/xplane.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nightjar_profiling.readers.wire import (
    DELIMITED,
    FIXED64,
    VARINT,
    Bytes,
    Positions,
    WireError,
    read_fields,
    read_varint,
)

# Numbers of the oneof of an XStat; the kind of a value is its number, 0 where there is none.
DOUBLE, UINT64, INT64, TEXT, BINARY, REFERENCE = 2, 3, 4, 5, 6, 7
EVENT_FIELDS = {1: "metadata_id", 2: "offset_ps", 3: "duration_ps"}
FEW = 4  # events of one layout, below which decoding each alone is faster
TRIES = 8  # layouts looked for among events that look alike, before the rest is decoded one by one
PIECE = 1 << 16  # events at a time, so that what is worked on stays in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One stat of all events: `kind` as above, `value` an integer, the bits of a double, or the number of a text."""

    kind: NDArray[np.uint8]
    value: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The events of a plane, in the order of the file.

    Attributes:
        stats: the wanted ones, by name.
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
        data: the whole file.
        starts: where the contents of each event begin.
        ends: where they end.
        wanted: name by metadata id of the stats to decode.

    Raises:
        WireError: an event is not of the wire format.
    """
    count = len(starts)
    fields = {name: np.zeros(count, np.int64) for name in EVENT_FIELDS.values()}
    stats = {name: Stat(kind=np.zeros(count, np.uint8), value=np.zeros(count, np.int64)) for name in wanted.values()}
    texts: dict[bytes, int] = {}
    columns = {**fields, **{name: stat.value for name, stat in stats.items()}}

    def fill(layout: _Layout, rows: NDArray[np.void], events: Positions) -> None:
        for slot in layout.slots:
            columns[slot.column][events] = _pick(rows, slot, texts)
            if slot.kind:
                stats[slot.column].kind[events] = slot.kind

    for group in _group(data, starts, ends):
        size = int(ends[group[0]] - starts[group[0]])
        windows = np.ndarray((len(data) - size + 1,), f"V{max(size, 1)}", data, strides=(1,)) if size else None
        for events in (group[at : at + PIECE] for at in range(0, len(group), PIECE)):
            if windows is None:
                continue  # an event without a single field: all zeros
            rows = windows[starts[events]]
            for _ in range(TRIES):
                if len(rows) < FEW:
                    break
                layout = _read_layout(rows[0].tobytes(), wanted)
                alike = _compare(rows, layout)
                if alike.all():
                    fill(layout, rows, events)
                    rows = rows[:0]
                    break
                fill(layout, rows[alike], events[alike])
                rows, events = rows[~alike], events[~alike]
            for number in range(len(rows)):
                row = rows[number : number + 1]
                fill(_read_layout(row.tobytes(), wanted), row, events[number : number + 1])
    return Events(**fields, stats=stats, texts=list(texts))


def _group(data: Bytes, starts: Positions, ends: Positions) -> Iterator[Positions]:
    """Groups events of one length whose numbers probably take equally many bytes."""
    if not len(starts):
        return
    low, high = int(starts.min()), int(ends.max())
    top_bits = np.zeros((high - low) // 8 + 16, np.uint8)
    for at in range(low, high, PIECE * 8):
        part = np.packbits(data[at : min(at + PIECE * 8, high)] >> 7, bitorder="little")
        top_bits[(at - low) // 8 : (at - low) // 8 + len(part)] = part
    words = np.ndarray((len(top_bits) - 7,), "<u8", top_bits, strides=(1,))
    keys = np.empty(len(starts), np.uint16)
    for at in range(0, len(starts), PIECE):
        start, end = starts[at : at + PIECE] - low, ends[at : at + PIECE] - low
        length = (end - start).astype(np.uint64)
        key = length * np.uint64(0x9E3779B97F4A7C15)
        for first in range(0, min(int(length.max()), 4 * 56), 56):  # a word holds at least 57 bits from any bit on
            bits = words[np.minimum(start + first, end) >> 3] >> (np.minimum(start + first, end) & 7).astype(np.uint64)
            left = np.clip(end - start - first, 0, 56).astype(np.uint64)
            bits &= (np.uint64(1) << left) - np.uint64(1)
            key = (key ^ bits) * np.uint64(0xC2B2AE3D27D4EB4F)
            key ^= key >> np.uint64(29)
        keys[at : at + PIECE] = key >> np.uint64(48)
    order = np.argsort(keys, kind="stable")
    for same_key in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        sizes = ends[same_key] - starts[same_key]
        if (sizes == sizes[0]).all():
            yield same_key
            continue
        for size in np.unique(sizes).tolist():
            yield same_key[sizes == size]


def _compare(rows: NDArray[np.void], layout: _Layout) -> NDArray[np.bool_]:
    """Which rows have the bytes that a layout prescribes."""
    size = len(layout.data)
    if size < 8:
        expected, mask = np.frombuffer(layout.data, np.uint8), np.frombuffer(bytes(layout.mask), np.uint8)
        found = rows.view(np.uint8).reshape(len(rows), size)
        return np.asarray(((found ^ expected) & mask == 0).all(axis=1))
    different = np.zeros(len(rows), np.uint64)
    for at in dict.fromkeys((*range(0, size - 7, 8), size - 8)):
        expected_word = int.from_bytes(layout.data[at : at + 8], "little")
        mask_word = int.from_bytes(layout.mask[at : at + 8], "little")
        if mask_word:
            different |= (_words(rows, at) ^ np.uint64(expected_word)) & np.uint64(mask_word)
    return np.asarray(different == 0)


def _words(rows: NDArray[np.void], at: int) -> NDArray[np.uint64]:
    """The eight bytes at that place of each row."""
    return np.ndarray((len(rows),), "<u8", rows, at, (rows.itemsize,))


def _pick(rows: NDArray[np.void], slot: _Slot, texts: dict[bytes, int]) -> Positions:
    """The values of a slot."""
    size = rows.itemsize
    if slot.kind in (TEXT, BINARY):
        found = rows.view(np.uint8).reshape(len(rows), size)[:, slot.start : slot.end]
        return np.array([texts.setdefault(one.tobytes(), len(texts)) for one in found], np.int64)
    if slot.kind == DOUBLE:
        return _words(rows, slot.start).view(np.int64)
    value = np.zeros(len(rows), np.uint64)
    for start in range(slot.start, slot.end, 8):
        end = min(start + 8, slot.end)
        at = max(0, min(start, size - 8))
        if size < 8:
            word = np.zeros(len(rows), np.uint64)
            word.view(np.uint8).reshape(-1, 8)[:, :size] = rows.view(np.uint8).reshape(-1, size)
        else:
            word = _words(rows, at)
        word = word >> np.uint64(8 * (start - at))
        for number in range(end - start):
            bits = (word >> np.uint64(number)) & np.uint64(0x7F << (7 * number))
            value |= bits << np.uint64(7 * (start - slot.start))
    return value.view(np.int64)


def _read_layout(data: bytes, wanted: Mapping[int, str]) -> _Layout:
    """The layout of an event, from the event itself."""
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
    """Of a value, only the bits that say where a varint ends are shared."""
    layout.mask[start:end] = (b"\x80" if wire == VARINT else b"\0") * (end - start)


def double_of(bits: int) -> float:
    """The double of the bits that a column holds.

    >>> double_of(0x3FF8000000000000)
    1.5
    """
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
