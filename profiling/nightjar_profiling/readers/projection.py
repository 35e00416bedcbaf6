"""Projection of host ranges onto GPU ops.

In: arrays of the host's ranges, its CUDA calls and the GPU ops. Out: a `Projection`: the parent, depth, span and number
of ops of each range; the call and the innermost range of each op. Nothing here depends on NVTX or XLA.

Rules: An op belongs to the call of its process with the same correlation id. A range contains a call or another range
of the same thread if both its start and its end lie within the range, ends included. The parent of a range is the
shortest range that contains it; of several equally short ones, the one that began last; of equal ranges, the first in
the input contains the others. A range spans the ops of all calls that it contains.

Nested ranges of a thread (push and pop) take linear time: a direct-address table finds the call of an op, a sort by
start makes depths a difference of two counts, and spans are summed up the tree level by level. A thread whose ranges
overlap without nesting (start and end) is processed range by range.

Source: NVIDIA Nsight Systems, report `nvtx_gpu_proj_trace` (its output, not its code).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NONE = -1
LATEST = np.iinfo(np.int64).max
PIECE = 1 << 15  # ranges per piece: 10M ranges took 5.7 s in one piece and 2.6 s in pieces of this size
SMALL = 512  # ranges that the search for a cut scans first
FEW_LEVELS = 8  # up to this depth, one scan per level is faster than a sort by level
SPARSE = 8  # largest number of table slots per correlation id


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Ranges of the host; `thread` is unique among all processes."""

    start: Ints
    end: Ints
    thread: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """CUDA calls of the host; a correlation id names one call of a process."""

    start: Ints
    end: Ints
    thread: Ints
    process: Ints
    correlation: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """Runs of kernels, copies and fills on a device."""

    start: Ints
    end: Ints
    process: Ints
    correlation: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Ranges projected onto the device; -1 means none.

    Attributes:
        parent: shortest range that contains each range.
        start: start of the first op of each range; undefined if `n_calls` is 0.
        n_calls: number of calls in each range that launched ops.
        op_range: innermost range around the call of each op.
    """

    parent: Ints
    level: Ints
    start: Ints
    end: Ints
    n_calls: Ints
    op_call: Ints
    op_range: Ints


def project(ranges: Ranges, calls: Calls, ops: Ops) -> Projection:
    """Projects ranges onto the device.

    >>> import numpy as np
    >>> a = lambda *numbers: np.array(numbers, np.int64)
    >>> projection = project(
    ...     Ranges(start=a(0, 1), end=a(9, 5), thread=a(7, 7)),
    ...     Calls(start=a(2, 6), end=a(3, 7), thread=a(7, 7), process=a(1, 1), correlation=a(40, 41)),
    ...     Ops(start=a(100, 120), end=a(110, 125), process=a(1, 1), correlation=a(40, 41)),
    ... )
    >>> projection.parent.tolist(), projection.start.tolist(), projection.end.tolist(), projection.op_range.tolist()
    ([-1, 0], [100, 100], [125, 110], [1, 0])
    """
    op_call = find_calls(calls, ops)
    launching, first, last = _span_calls(len(calls.start), op_call, ops)
    call_range = np.full(len(calls.start) + 1, NONE)  # the last element is read for -1, no call
    parent, level, start, end, n_calls = (np.empty(len(ranges.start), np.int64) for _ in range(5))
    of_thread = dict(_by_thread(calls.thread[launching] if len(launching) < len(calls.thread) else calls.thread))
    for thread, rows in _by_thread(ranges.thread):
        begins, ends, rows = _put_in_order(ranges.start, ranges.end, rows, -1)
        part = of_thread.get(thread, launching[:0])
        if len(launching) < len(calls.thread):
            part = launching[part]
        called, returned, part = _put_in_order(calls.start, calls.end, part, 1)
        for cut, call_cut in _cut(begins, ends, called):
            range_rows, call_rows = rows[cut], part[call_cut]
            piece = _project_piece(
                begins[cut], ends[cut], called[call_cut], returned[call_cut], first[call_rows], last[call_rows]
            )
            numbers = np.append(range_rows, NONE)
            parent[range_rows], call_range[call_rows] = numbers[piece.parent], numbers[piece.call_range]
            level[range_rows], n_calls[range_rows] = piece.level, piece.n_calls
            start[range_rows], end[range_rows] = piece.start, piece.end
    op_range = call_range[op_call]
    return Projection(
        parent=parent, level=level, start=start, end=end, n_calls=n_calls, op_call=op_call, op_range=op_range
    )


def find_calls(calls: Calls, ops: Ops) -> Ints:
    """Finds the call of each op by its process and correlation id, or -1."""
    if not len(calls.start) or not len(ops.start):
        return np.full(len(ops.start), NONE)
    of_calls, of_ops = calls.correlation, ops.correlation
    processes = calls.process[:1]
    if not bool((calls.process == processes).all() and (ops.process == processes).all()):
        processes = np.unique(calls.process)
        lowest = min(of_calls.min(), of_ops.min())
        width = max(of_calls.max(), of_ops.max()) - lowest + 1
        of_calls = of_calls - lowest + np.searchsorted(processes, calls.process) * width
        rows = np.searchsorted(processes, ops.process).clip(max=len(processes) - 1)
        of_ops = np.where(processes[rows] == ops.process, of_ops - lowest + rows * width, len(processes) * width)
    return look_up(of_calls, of_ops)


def look_up(keys: Ints, queries: Ints) -> Ints:
    """Finds the position of each query in the keys, the last of several, or -1.

    >>> look_up(np.array([7, 5]), np.array([5, 6, 7])).tolist()
    [1, -1, 0]
    """
    if not len(keys) or not len(queries):
        return np.full(len(queries), NONE)
    lowest, highest = min(keys.min(), queries.min()), max(keys.max(), queries.max())
    if highest - lowest > SPARSE * (len(keys) + len(queries)) + 1024:
        order = np.argsort(keys, kind="stable")
        positions = np.searchsorted(keys, queries, side="right", sorter=order) - 1
        rows = order[positions]
        return np.where((positions >= 0) & (keys[rows] == queries), rows, NONE)
    if lowest < 0 or lowest > len(keys):
        keys, queries, highest = keys - lowest, queries - lowest, highest - lowest
    dtype = np.int32 if len(keys) < 1 << 31 else np.int64  # int32 halves the memory
    table = np.full(int(highest) + 1, NONE, dtype)
    for piece in _slices(len(keys)):
        table[keys[piece]] = np.arange(piece.start, piece.stop, dtype=dtype)
    rows = np.empty(len(queries), np.int64)
    for piece in _slices(len(queries)):
        rows[piece] = table[queries[piece]]
    return rows


def _slices(count: int) -> Iterator[slice]:
    return (slice(first, min(first + PIECE, count)) for first in range(0, count, PIECE))


@dataclass(frozen=True, slots=True)
class _Piece:
    """The projection of a piece; numbers are rows of the piece."""

    parent: Ints
    level: Ints
    start: Ints
    end: Ints
    n_calls: Ints
    call_range: Ints


def _span_calls(count: int, op_call: Ints, ops: Ops) -> tuple[Ints, Ints, Ints]:
    """The rows of the calls that launched ops; the first start and last end of the ops of each call."""
    first, last = np.full(count, LATEST), np.full(count, NONE)
    launched = op_call >= 0
    begin, end = ops.start, ops.end
    if not launched.all():
        op_call, begin, end = op_call[launched], begin[launched], end[launched]
    in_order = _span(first, last, op_call, begin, end)
    return op_call if in_order else np.flatnonzero(first != LATEST), first, last


def _span(first: Ints, last: Ints, index: Ints, begin: Ints, end: Ints) -> bool:
    """Fills empty spans with the first begin and last end at each index; returns whether the indices ascend."""
    if bool((index[1:] > index[:-1]).all()):  # each index occurs once: nothing to compare
        first[index], last[index] = begin, end
        return True
    np.minimum.at(first, index, begin)
    np.maximum.at(last, index, end)
    return False


def _by_thread(thread: Ints) -> Iterator[tuple[int, Ints]]:
    """Yields each thread with its rows; the time grows with the number of runs of rows of one thread."""
    if not len(thread):
        return
    begins = np.append(0, np.flatnonzero(thread[1:] != thread[:-1]) + 1)
    lengths = np.diff(begins, append=len(thread))
    threads, code = np.unique(thread[begins], return_inverse=True)
    order = np.argsort(code.astype(np.uint16) if len(threads) < 2**16 else code, kind="stable")
    stops = np.cumsum(lengths[order])
    rows = np.ones(len(thread), np.int64)  # differences, summed up below
    rows[0] = begins[order[0]]
    rows[stops[:-1]] = begins[order[1:]] - (begins + lengths - 1)[order[:-1]]
    np.cumsum(rows, out=rows)
    last = np.cumsum(np.bincount(code, minlength=len(threads))) - 1
    yield from zip(threads.tolist(), np.split(rows, stops[last[:-1]]), strict=True)


def _put_in_order(start: Ints, end: Ints, rows: Ints, sign: int) -> tuple[Ints, Ints, Ints]:
    """Start, end and number of these rows by start, then by end times sign; a stable sort."""
    start, end = start[rows], end[rows]
    ties = np.flatnonzero(start[1:] <= start[:-1])
    if not bool((start[ties + 1] < start[ties]).any() or (sign * (end[ties + 1] - end[ties]) < 0).any()):
        return start, end, rows
    order = np.lexsort((sign * end, start))
    return start[order], end[order], rows[order]


def _cut(start: Ints, end: Ints, called: Ints) -> Iterator[tuple[slice, slice]]:
    """Cuts a thread into pieces of ranges and calls when no range is open; pieces are small enough for a cache."""
    cuts = [0]
    while (cut := _find_cut(start, end, cuts[-1])) < len(start):
        cuts.append(cut)
    at_range = [*cuts, len(start)]
    at_call = [0, *np.searchsorted(called, start[cuts[1:]]).tolist(), len(called)]
    for number in range(len(at_range) - 1):
        yield slice(*at_range[number : number + 2]), slice(*at_call[number : number + 2])


def _find_cut(start: Ints, end: Ints, first: int) -> int:
    """The next cut: the first range, a piece or more after `first`, that begins once all ranges since have ended."""
    row, size = first + PIECE, SMALL
    latest = end[first:row].max(initial=NONE)
    while row < len(start):
        begins, ends = start[row : row + size], end[row : row + size]
        open_until = np.maximum.accumulate(np.append(latest, ends))
        is_cut = begins > open_until[:-1]
        if is_cut.any():
            return row + int(is_cut.argmax())
        latest, row, size = open_until[-1], row + size, min(2 * size, PIECE)
    return len(start)


def _project_piece(start: Ints, end: Ints, called: Ints, returned: Ints, first: Ints, last: Ints) -> _Piece:
    """Projects ranges by start, longest first, and calls by start."""
    if bool((end > start).all()) and not _touches(end, called, returned):
        outer = np.flatnonzero(start[1:] < end[:-1])  # ranges with children: the next range begins within
        after = np.arange(1, len(start) + 1)  # first row after the end of each range; rows before it lie in the range
        after[outer] = np.searchsorted(start, end[outer])
        level = _add_up(0, outer, after[outer], 1, len(start))
        parent = _find_parents(outer, after[outer], level)
        ends = np.append(end, LATEST)
        if bool((ends.take(parent, mode="wrap") >= end).all()):
            inner = _leave_ended(ends, parent, _count_begun(start, called) - 1, returned)
            return _Piece(parent, level, *_sum_up(parent, level, outer, after, inner, first, last), inner)
    parent, level = _find_shortest(start, end)
    spans = _search(start, end, called, returned, first, last)
    return _Piece(parent, level, *spans, _search_inner(start, end, called, returned))


def _touches(end: Ints, called: Ints, returned: Ints) -> bool:
    """Whether a call of zero duration lies at the end of a range, and so may be in the next range as well."""
    no_time = called[returned == called]
    return bool(len(no_time)) and bool(np.isin(no_time, end).any())


def _add_up(first: int, outer: Ints, after: Ints, values: Ints | int, count: int) -> Ints:
    """For each row, `first` plus the values of its ancestors; `outer` contains the rows up to before `after`."""
    changes = np.zeros(count + 1, np.int64)
    changes[0], changes[outer + 1] = first, values
    np.subtract.at(changes, after, values)
    return np.cumsum(changes[:-1])


def _by_level(level: Ints) -> list[Ints]:
    """The rows of each level, outermost level first."""
    deepest = int(level.max(initial=0))
    if deepest < FEW_LEVELS:
        return [np.flatnonzero(level == number) for number in range(deepest + 1)]
    order = np.argsort(level.astype(np.uint16) if deepest < 2**16 else level, kind="stable")
    return np.split(order, np.cumsum(np.bincount(level))[:-1])


def _count_begun(start: Ints, called: Ints) -> Ints:
    """The number of ranges that began before or with each call, both by start; merging is faster than a search."""
    merged = np.argsort(np.concatenate([start, called]), kind="stable")
    return np.flatnonzero(merged >= len(start)) - np.arange(len(called))


def _find_parents(outer: Ints, after: Ints, level: Ints) -> Ints:
    """For nested ranges by start: the parent of each. It changes at the start and after the end of a parent."""
    outer_level = level[outer]
    by_level = np.concatenate(_by_level(outer_level))
    # If a range is a level deeper than the one before it, that one; otherwise the parent of its sibling. `eldest` are
    # positions in `by_level`.
    eldest = np.flatnonzero(np.append(False, outer_level[1:] > outer_level[:-1])[by_level])
    parent = np.full(len(outer), NONE)
    if len(eldest):
        parent[by_level[eldest[0] :]] = outer[np.repeat(by_level[eldest] - 1, np.diff(eldest, append=len(outer)))]
    return _add_up(NONE, outer, after, outer - parent, len(level))


def find_inner(start: Ints, end: Ints, parent: Ints, called: Ints, returned: Ints) -> Ints:
    """For nested ranges by start: the innermost range around each call; calls in any order."""
    return _leave_ended(np.append(end, LATEST), parent, np.searchsorted(start, called, side="right") - 1, returned)


def _leave_ended(ends: Ints, parent: Ints, inner: Ints, returned: Ints) -> Ints:
    """Moves `inner`, the last range that began before each call, outward to the first that ends after the call."""
    ended = np.flatnonzero(ends[inner] < returned)
    while len(ended):
        outer = parent[inner[ended]]
        inner[ended] = outer
        ended = ended[ends[outer] < returned[ended]]
    return inner


def _sum_up(
    parent: Ints, level: Ints, outer: Ints, after: Ints, inner: Ints, first: Ints, last: Ints
) -> tuple[Ints, Ints, Ints]:
    """For nested ranges: first start, last end and number of the calls in each."""
    start, end = np.full(len(parent) + 1, LATEST), np.full(len(parent) + 1, NONE)  # the last element is for no range
    _span(start, end, inner, first, last)
    if (after[outer] - outer).sum() < FEW_LEVELS * len(parent):  # sums over all rows in each; every other one is a gap
        bounds = np.stack([outer, after[outer]], axis=1).ravel()
        start[outer], end[outer] = np.minimum.reduceat(start, bounds)[::2], np.maximum.reduceat(end, bounds)[::2]
    else:
        for rows in _by_level(level)[:0:-1]:
            np.minimum.at(start, parent[rows], start[rows])
            np.maximum.at(end, parent[rows], end[rows])
    before = np.zeros(len(parent) + 1, np.int64)
    np.cumsum(np.bincount(inner + 1, minlength=len(parent) + 1)[1:], out=before[1:])
    return start[:-1], end[:-1], before[after] - before[:-1]


# Ranges that overlap without nesting.


def _find_shortest(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """For any ranges by start, longest first: parent and level."""
    parent, level = np.full(len(start), NONE), np.zeros(len(start), np.int64)
    open_ranges: list[int] = []
    starts, ends = start.tolist(), end.tolist()
    for row, (begin, stop) in enumerate(zip(starts, ends, strict=True)):
        open_ranges = [other for other in open_ranges if ends[other] >= begin]
        around = [other for other in open_ranges if ends[other] >= stop]
        if around:
            parent[row] = min(around, key=lambda other: (ends[other] - starts[other], -other))
            level[row] = level[parent[row]] + 1
        open_ranges.append(row)
    return parent, level


def _search_inner(start: Ints, end: Ints, called: Ints, returned: Ints) -> Ints:
    """For any ranges by start, longest first: the shortest around each call."""
    inner = np.full(len(called), NONE)
    length = end - start
    for row in np.lexsort((-np.arange(len(start)), length))[::-1]:  # the shortest is written last
        begin, stop = np.searchsorted(called, (start[row], end[row] + 1))
        rows = np.arange(begin, stop)
        inner[rows[returned[begin:stop] <= end[row]]] = row
    return inner


def _search(start: Ints, end: Ints, called: Ints, returned: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
    """For any ranges: first start, last end and number of the calls in each."""
    spans = (np.full(len(start), LATEST), np.full(len(start), NONE), np.zeros(len(start), np.int64))
    for row, (low, high) in enumerate(zip(start, end, strict=True)):
        begin, stop = np.searchsorted(called, (low, high + 1))
        inside = returned[begin:stop] <= high
        spans[0][row] = first[begin:stop][inside].min(initial=LATEST)
        spans[1][row] = last[begin:stop][inside].max(initial=NONE)
        spans[2][row] = inside.sum()
    return spans
