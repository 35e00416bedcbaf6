"""Field boundaries in protobuf messages.

In: bytes. Out: the fields of one message, or the positions of a long run of equal fields (the events of a line) without
an object for each. Every access is bounds-checked: invalid bytes raise a `WireError`.

Source: protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10
SEGMENTS = 512  # of a run, walked in parallel
SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES = 1024, 16384
SHORT_RUN_BYTES = 1 << 18  # below, a single walk is faster than parallel walks
WINDOW_BYTES = 256  # searched for the first element of a segment; a wrong guess costs only time


class WireError(ValueError):
    """The bytes are not a valid protobuf message."""


def read_varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """A varint and the position after it.

    >>> read_varint(bytes([0xAC, 0x02]), 0, 2)
    (300, 2)
    """
    value = shift = 0
    for index in range(position, min(end, position + LONGEST_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, index + 1
        shift += 7
    raise WireError(f"unterminated varint at byte {position}")


def read_fields(data: bytes | memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, and the start and end of the value (without its length)."""
    while position < end:
        tag, start = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, stop = read_varint(data, start, end)
        elif wire == DELIMITED:
            length, start = read_varint(data, start, end)
            stop = start + length
        elif wire == FIXED64:
            stop = start + 8
        elif wire == FIXED32:
            stop = start + 4
        else:
            raise WireError(f"unsupported wire type {wire} at byte {position}")
        if stop > end or number == 0:
            raise WireError(f"invalid field at byte {position}: number {number}, end {stop}; the message ends at {end}")
        yield number, wire, start, stop
        position = stop


def find_run(data: Bytes, position: int, end: int, tag: int) -> tuple[Positions, Positions, int]:
    """All elements of a run of length-delimited fields with a one-byte tag.

    A run is a linked list: only the previous element determines where an element starts. A long run is divided into
    segments that are walked in parallel, each from a guessed start. The walks are then joined; if the walk of a segment
    does not reach the guess of the next, the next segment is walked again from its end.

    Returns:
        Starts of the contents, their ends, and the position after the run.
    """
    walked = None
    if end - position >= max(SHORT_RUN_BYTES, 8 * LARGEST_SEGMENT_BYTES):
        walked = _walk_segments(data, position, end, tag)
    starts, position = walked or _walk(data, position, end, end, tag)
    if position > end:
        raise WireError(f"an element ends at byte {position}, past the end of its message at {end}")
    return *_contents(data, starts, position), position


def _walk(data: Bytes, position: int, limit: int, end: int, tag: int) -> tuple[Positions, int]:
    """Walks element by element, up to the limit or to another field."""
    starts: list[int] = []
    view = data.data
    while position < limit and view[position] == tag:
        starts.append(position)
        if position + 1 < end and view[position + 1] < 0x80:
            position += 2 + view[position + 1]
        else:
            length, content = read_varint(view, position + 1, end)
            position = content + length
        if position > end:
            raise WireError(f"an element ends at byte {position}, past the end of its message at {end}")
    return np.array(starts, np.int64), position


def _walk_segments(data: Bytes, position: int, end: int, tag: int) -> tuple[Positions, int] | None:
    """Walks the segments in parallel; None if the run ends long before `end`, which lengths alone do not show."""
    size = min(max((end - position) // SEGMENTS, SMALLEST_SEGMENT_BYTES), LARGEST_SEGMENT_BYTES)
    bounds = np.arange(position, end - 4 * size, size)
    limits = bounds + size
    guesses = bounds + _guess(data, bounds, tag)
    guesses[0] = position
    table = _step(data, guesses, limits)
    behind = _bisect(table, limits)
    stuck = behind == table.shape[1]
    exits = table[np.arange(len(table)), np.where(stuck, 0, behind)].tolist()
    firsts = _bisect(table, np.append(position, exits[:-1]))
    joined: list[Positions] = []
    for number, (row, limit) in enumerate(zip(table, limits.tolist(), strict=True)):
        first, last = firsts[number], behind[number]
        if number and position != exits[number - 1]:  # the previous segment was walked again
            first = np.searchsorted(row, position)
        if first < last and row[first] == position and not stuck[number]:
            joined.append(row[first:last])
            position = exits[number]
        elif position < limit:  # otherwise one element spans the segment
            try:
                walked, position = _walk(data, position, limit, end, tag)
            except WireError:
                return None
            joined.append(walked)
            if position < limit:
                return None
    starts = np.concatenate(joined)
    if (data.take(starts) != tag).any() or position > end:
        return None
    walked, position = _walk(data, position, end, end, tag)
    return np.concatenate([starts, walked]), position


def _bisect(table: Positions, values: Positions) -> Positions:
    """In each ascending row, the number of elements smaller than the row's value."""
    rows, low, high = np.arange(len(table)), np.zeros(len(table), np.int64), np.full(len(table), table.shape[1])
    while (low < high).any():
        middle = (low + high) // 2
        smaller = (table[rows, np.minimum(middle, table.shape[1] - 1)] < values) & (low < high)
        low, high = np.where(smaller, middle + 1, low), np.where(smaller, high, middle)
    return low


def _step(data: Bytes, positions: Positions, limits: Positions) -> Positions:
    """The walk from each position, one row each, until all have passed their limits or are stuck on invalid bytes."""
    steps = [positions]
    first, second = data[1:], data[2:]
    while True:
        # `take` copies unaligned arrays: read single bytes, not overlapping words.
        length = first.take(positions, mode="clip")
        if (length < 0x80).all():
            positions = positions + length + 2
        else:
            positions = positions + _ADVANCE.take(length | second.take(positions, mode="clip").astype(np.uint16) << 8)
        steps.append(positions)
        if len(steps) % 16 == 0 and ((positions >= limits) | (positions == steps[-2])).all():
            return np.stack(steps, axis=1)


def _guess(data: Bytes, bounds: Positions, tag: int) -> Positions:
    """Distance from each bound to bytes that look like an element whose first field is number 1."""
    window = np.ndarray((len(data) - WINDOW_BYTES + 1,), f"V{WINDOW_BYTES}", data, strides=(1,))[bounds]
    near = window.view(np.uint8).reshape(len(bounds), WINDOW_BYTES)
    likely: Positions = ((near[:, :-2] == tag) & (near[:, 2:] == 0x08)).argmax(axis=1)
    return likely


def _make_advance() -> NDArray[np.int64]:
    """Distance to the next element, by the two bytes after a tag; 0 if its length takes more than two bytes."""
    first, second = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    two_bytes = np.where(second < 0x80, 3 + (first & 0x7F) + (second << 7), 0)
    return np.where(first < 0x80, 2 + first, two_bytes)


_ADVANCE = _make_advance()


def _contents(data: Bytes, starts: Positions, position: int) -> tuple[Positions, Positions]:
    """Starts and ends of the contents of a run, from the positions of its one-byte tags and its end."""
    ends = np.append(starts, position)[1:]
    begins = starts + 2
    longer = np.flatnonzero(data.take(starts + 1) >= 0x80)
    while len(longer):  # whose length continues in another byte
        begins[longer] += 1
        longer = longer[data.take(begins[longer] - 1) >= 0x80]
    return begins, ends
