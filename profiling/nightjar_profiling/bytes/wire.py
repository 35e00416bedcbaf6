"""Where does each field of a protobuf message begin and end?

In: bytes. Out: the fields of one message, or the positions of a long run of equal fields (the events of a line), found
without making an object for each. Everything checks its bounds: bytes that are no protobuf end in a `WireError`.

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
SEGMENTS = 512  # of a run, walked side by side
SMALLEST_SEGMENT_BYTES, LARGEST_SEGMENT_BYTES = 1024, 16384
SHORT_RUN_BYTES = 1 << 18  # below, one walk is faster than many at once
WINDOW_BYTES = 256  # in which the first element of a segment is looked for; a wrong guess costs time, not truth


class WireError(ValueError):
    """The bytes are no protobuf message."""


def read_varint(data: bytes | memoryview, position: int, end: int) -> tuple[int, int]:
    """A varint and the position behind it.

    >>> read_varint(bytes([0xAC, 0x02]), 0, 2)
    (300, 2)
    """
    value = shift = 0
    for here in range(position, min(end, position + LONGEST_VARINT)):
        byte = data[here]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, here + 1
        shift += 7
    raise WireError(f"a number at byte {position} does not end")


def read_fields(data: bytes | memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, and where the value begins and ends (without its length).

    Raises:
        WireError: a field reaches over the end, or is of no known type.
    """
    while position < end:
        tag, start = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, stop = read_varint(data, start, end)
        elif wire == DELIMITED:
            length, start = read_varint(data, start, end)
            stop = start + length
        elif wire in (FIXED64, FIXED32):
            stop = start + (8 if wire == FIXED64 else 4)
        else:
            raise WireError(f"byte {position} begins a field of wire type {wire}, which no profiler writes")
        if stop > end or number == 0:
            raise WireError(
                f"the field at byte {position} has number {number} and ends at {stop}, its message at {end}"
            )
        yield number, wire, start, stop
        position = stop


def find_run(data: Bytes, position: int, end: int, tag: int) -> tuple[Positions, Positions, int]:
    """All elements of a run of length-delimited fields with a one-byte tag.

    A run is a linked list: where an element begins is known only from the one before. A long run is cut into segments
    that are walked side by side, each from a guess; the walks are then joined, and a segment whose guess was not met
    by the walk before it is walked anew from where that one came out.

    Returns:
        Where the contents begin, where they end, and the position behind the run.

    Raises:
        WireError: an element reaches over the end.
    """
    found = None
    if end - position >= max(SHORT_RUN_BYTES, 8 * LARGEST_SEGMENT_BYTES):
        found = _walk_segments(data, position, end, tag)
    starts, position = found or _walk(data, position, end, end, tag)
    if position > end:
        raise WireError(f"an element ends at byte {position}, its message at {end}")
    return *_contents(data, starts, position), position


def _walk(data: Bytes, position: int, limit: int, end: int, tag: int) -> tuple[Positions, int]:
    """Element by element, until the limit is passed or another field begins."""
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
            raise WireError(f"an element ends at byte {position}, its message at {end}")
    return np.array(starts, np.int64), position


def _walk_segments(data: Bytes, position: int, end: int, tag: int) -> tuple[Positions, int] | None:
    """None where the run ends long before the end, which the walks do not see: they look at lengths only."""
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
        if number and position != exits[number - 1]:  # the walk before was not the one that was looked for
            first = np.searchsorted(row, position)
        if first < last and row[first] == position and not stuck[number]:
            joined.append(row[first:last])
            position = exits[number]
        elif position < limit:  # else an element larger than a segment
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
    """In each ascending row, how many are smaller than the row's value."""
    rows, low, high = np.arange(len(table)), np.zeros(len(table), np.int64), np.full(len(table), table.shape[1])
    while (low < high).any():
        middle = (low + high) // 2
        smaller = (table[rows, np.minimum(middle, table.shape[1] - 1)] < values) & (low < high)
        low, high = np.where(smaller, middle + 1, low), np.where(smaller, high, middle)
    return low


def _step(data: Bytes, here: Positions, limits: Positions) -> Positions:
    """The walk from each place, a row each, until all are beyond their limits, or stuck on what is no element."""
    steps = [here]
    first, second = data[1:], data[2:]
    while True:
        # `take` copies what is not one piece of aligned memory: single bytes are, words that overlap are not.
        length = first.take(here, mode="clip")
        if (length < 0x80).all():
            here = here + length + 2
        else:
            here = here + _ADVANCE.take(length | second.take(here, mode="clip").astype(np.uint16) << 8)
        steps.append(here)
        if len(steps) % 16 == 0 and ((here >= limits) | (here == steps[-2])).all():
            return np.stack(steps, axis=1)


def _guess(data: Bytes, bounds: Positions, tag: int) -> Positions:
    """How far behind each bound something lies that looks like an element whose first field is number 1."""
    window = np.ndarray((len(data) - WINDOW_BYTES + 1,), f"V{WINDOW_BYTES}", data, strides=(1,))[bounds]
    near = window.view(np.uint8).reshape(len(bounds), WINDOW_BYTES)
    likely: Positions = ((near[:, :-2] == tag) & (near[:, 2:] == 0x08)).argmax(axis=1)
    return likely


def _make_advance() -> NDArray[np.int64]:
    """How far it is to the next element, by the two bytes behind a tag; 0 where its length takes more than two."""
    first, second = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    two_bytes = np.where(second < 0x80, 3 + (first & 0x7F) + (second << 7), 0)
    return np.where(first < 0x80, 2 + first, two_bytes)


_ADVANCE = _make_advance()


def _contents(data: Bytes, starts: Positions, position: int) -> tuple[Positions, Positions]:
    """Where the contents of the elements of a run begin and end, whose one-byte tags are given, and the end of it."""
    ends = np.append(starts, position)[1:]
    begins = starts + 2
    left = np.flatnonzero(data.take(starts + 1) >= 0x80)
    while len(left):  # whose length goes on in another byte
        begins[left] += 1
        left = left[data.take(begins[left] - 1) >= 0x80]
    return begins, ends
