"""Which host range launched each GPU op, and when did the work of a range run on the device?

In: arrays of the host's ranges, its CUDA calls and the GPU ops. Out: a `Projection`: for each range its parent, its
depth and the span and number of its ops; for each op its call and its innermost range. Nothing here knows NVTX or XLA.

The rules. An op belongs to the call of its process that has its correlation id. A range contains a call, and a range
another range, of the same thread whose start and end both lie within its own, ends included. The parent of a range is
the shortest range that contains it, of several as short that which began last; of equal ranges, the one given first
contains the others. A range spans the ops of all the calls that it contains.

Ranges of a thread that nest (push and pop) take time linear in their number: a direct-address table finds the call of
an op, a sort by start makes depths a difference of two counts, and spans are summed up the tree level by level. Where
ranges of a thread overlap without nesting (start and end), that thread alone is worked through range by range.

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
PIECE = 1 << 15  # ranges that are worked on at once: 10M took 5.7 s in one piece and 2.6 s so
SMALL = 512  # ranges that are looked at first for a place to cut
FEW_LEVELS = 8  # up to which to look for each is faster than to sort by it
SPARSE = 8  # a table of correlation ids may have as many slots per id that occurs


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
    """What was launched where; -1 stands for none.

    Attributes:
        parent: of each range, the shortest that contains it.
        level: of each range, how many lie around it.
        start: of each range, of its first op; meaningless where `n_calls` is 0.
        end: of each range, of its last op.
        n_calls: of each range, how many calls in it launched ops.
        op_call: of each op, the call that launched it.
        op_range: of each op, the innermost range around its call.
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
    >>> found = project(
    ...     Ranges(start=a(0, 1), end=a(9, 5), thread=a(7, 7)),
    ...     Calls(start=a(2, 6), end=a(3, 7), thread=a(7, 7), process=a(1, 1), correlation=a(40, 41)),
    ...     Ops(start=a(100, 120), end=a(110, 125), process=a(1, 1), correlation=a(40, 41)),
    ... )
    >>> found.parent.tolist(), found.start.tolist(), found.end.tolist(), found.op_range.tolist()
    ([-1, 0], [100, 100], [125, 110], [1, 0])
    """
    op_call = find_calls(calls, ops)
    launching, first, last = _span_calls(len(calls.start), op_call, ops)
    call_range = np.full(len(calls.start) + 1, NONE)  # the last place is that of no call, -1
    parent, level, start, end, n_calls = (np.empty(len(ranges.start), np.int64) for _ in range(5))
    of_thread = dict(_by_thread(calls.thread[launching] if len(launching) < len(calls.thread) else calls.thread))
    for thread, rows in _by_thread(ranges.thread):
        begins, ends, rows = _put_in_order(ranges.start, ranges.end, rows, -1)
        part = of_thread.get(thread, launching[:0])
        if len(launching) < len(calls.thread):
            part = launching[part]
        called, returned, part = _put_in_order(calls.start, calls.end, part, 1)
        for few, some in _cut(begins, ends, called):
            here, there = rows[few], part[some]
            found = _project_piece(begins[few], ends[few], called[some], returned[some], first[there], last[there])
            numbers = np.append(here, NONE)
            parent[here], call_range[there] = numbers[found.parent], numbers[found.call_range]
            level[here], start[here], end[here], n_calls[here] = found.level, found.start, found.end, found.n_calls
    op_range = call_range[op_call]
    return Projection(
        parent=parent, level=level, start=start, end=end, n_calls=n_calls, op_call=op_call, op_range=op_range
    )


def find_calls(calls: Calls, ops: Ops) -> Ints:
    """The call of each op: that of its process and correlation id, or -1."""
    if not len(calls.start) or not len(ops.start):
        return np.full(len(ops.start), NONE)
    of_calls, of_ops = calls.correlation, ops.correlation
    processes = calls.process[:1]
    if not bool((calls.process == processes).all() and (ops.process == processes).all()):
        processes = np.unique(calls.process)
        lowest = min(of_calls.min(), of_ops.min())
        width = max(of_calls.max(), of_ops.max()) - lowest + 1
        of_calls = of_calls - lowest + np.searchsorted(processes, calls.process) * width
        place = np.searchsorted(processes, ops.process).clip(max=len(processes) - 1)
        of_ops = np.where(processes[place] == ops.process, of_ops - lowest + place * width, len(processes) * width)
    return look_up(of_calls, of_ops)


def look_up(known: Ints, wanted: Ints) -> Ints:
    """The place of each wanted number among the known, the last of several, or -1.

    >>> look_up(np.array([7, 5]), np.array([5, 6, 7])).tolist()
    [1, -1, 0]
    """
    if not len(known) or not len(wanted):
        return np.full(len(wanted), NONE)
    lowest, highest = min(known.min(), wanted.min()), max(known.max(), wanted.max())
    if highest - lowest > SPARSE * (len(known) + len(wanted)) + 1024:
        order = np.argsort(known, kind="stable")
        place = np.searchsorted(known, wanted, side="right", sorter=order) - 1
        found = order[place]
        return np.where((place >= 0) & (known[found] == wanted), found, NONE)
    if lowest < 0 or lowest > len(known):
        known, wanted, highest = known - lowest, wanted - lowest, highest - lowest
    small = np.int32 if len(known) < 1 << 31 else np.int64  # half the memory to fill and to look into
    table = np.full(int(highest) + 1, NONE, small)
    for some in _slices(len(known)):
        table[known[some]] = np.arange(some.start, some.stop, dtype=small)
    found = np.empty(len(wanted), np.int64)
    for some in _slices(len(wanted)):
        found[some] = table[wanted[some]]
    return found


def _slices(count: int) -> Iterator[slice]:
    """Rows that are worked on at once."""
    return (slice(first, min(first + PIECE, count)) for first in range(0, count, PIECE))


@dataclass(frozen=True, slots=True)
class _Piece:
    """The projection of some ranges of a thread, in the numbers of its own ranges."""

    parent: Ints
    level: Ints
    start: Ints
    end: Ints
    n_calls: Ints
    call_range: Ints


def _span_calls(count: int, op_call: Ints, ops: Ops) -> tuple[Ints, Ints, Ints]:
    """Numbers of the calls that launched ops; of every call, first start and last end of its ops."""
    first, last = np.full(count, LATEST), np.full(count, NONE)
    some = op_call >= 0
    begin, end = ops.start, ops.end
    if not some.all():
        op_call, begin, end = op_call[some], begin[some], end[some]
    in_order = _span(first, last, op_call, begin, end)
    return op_call if in_order else np.flatnonzero(first != LATEST), first, last


def _span(first: Ints, last: Ints, place: Ints, begin: Ints, end: Ints) -> bool:
    """First begin and last end at each place, into spans that are empty yet; whether the places ascend."""
    if bool((place[1:] > place[:-1]).all()):  # one for each: nothing to compare
        first[place], last[place] = begin, end
        return True
    np.minimum.at(first, place, begin)
    np.maximum.at(last, place, end)
    return False


def _by_thread(thread: Ints) -> Iterator[tuple[int, Ints]]:
    """Each thread with the numbers of its rows; as many steps as there are runs of rows of one thread."""
    if not len(thread):
        return
    begins = np.append(0, np.flatnonzero(thread[1:] != thread[:-1]) + 1)
    lengths = np.diff(begins, append=len(thread))
    threads, code = np.unique(thread[begins], return_inverse=True)
    order = np.argsort(code.astype(np.uint16) if len(threads) < 2**16 else code, kind="stable")
    stops = np.cumsum(lengths[order])
    rows = np.ones(len(thread), np.int64)  # from each to the next, to be added up
    rows[0] = begins[order[0]]
    rows[stops[:-1]] = begins[order[1:]] - (begins + lengths - 1)[order[:-1]]
    np.cumsum(rows, out=rows)
    last = np.cumsum(np.bincount(code, minlength=len(threads))) - 1
    yield from zip(threads.tolist(), np.split(rows, stops[last[:-1]]), strict=True)


def _put_in_order(start: Ints, end: Ints, rows: Ints, sign: int) -> tuple[Ints, Ints, Ints]:
    """Start, end and number of these rows by start, then by end times sign, rows that are equal as they stand."""
    start, end = start[rows], end[rows]
    same = np.flatnonzero(start[1:] <= start[:-1])
    if not bool((start[same + 1] < start[same]).any() or (sign * (end[same + 1] - end[same]) < 0).any()):
        return start, end, rows
    order = np.lexsort((sign * end, start))
    return start[order], end[order], rows[order]


def _cut(start: Ints, end: Ints, called: Ints) -> Iterator[tuple[slice, slice]]:
    """Pieces of a thread, some of its ranges and calls each, cut where no range is open; small, to fit a cache."""
    cuts = [0]
    while (cut := _find_cut(start, end, cuts[-1])) < len(start):
        cuts.append(cut)
    at_range = [*cuts, len(start)]
    at_call = [0, *np.searchsorted(called, start[cuts[1:]]).tolist(), len(called)]
    for number in range(len(at_range) - 1):
        yield slice(*at_range[number : number + 2]), slice(*at_call[number : number + 2])


def _find_cut(start: Ints, end: Ints, first: int) -> int:
    """The first range a piece or more behind another that begins when all from that one on have ended."""
    place, size = first + PIECE, SMALL
    latest = end[first:place].max(initial=NONE)
    while place < len(start):
        begins, ends = start[place : place + size], end[place : place + size]
        until = np.maximum.accumulate(np.append(latest, ends))
        free = begins > until[:-1]
        if free.any():
            return place + int(free.argmax())
        latest, place, size = until[-1], place + size, min(2 * size, PIECE)
    return len(start)


def _project_piece(start: Ints, end: Ints, called: Ints, returned: Ints, first: Ints, last: Ints) -> _Piece:
    """Projects ranges by start, longest first, and calls by start."""
    if bool((end > start).all()) and not _touches(end, called, returned):
        outer = np.flatnonzero(start[1:] < end[:-1])  # those that hold others: the next one begins within
        after = np.arange(1, len(start) + 1)  # where each has ended; where they nest, those between lie in it
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
    """Whether a call that took no time lies at the end of a range, where it may be in the next one as well."""
    no_time = called[returned == called]
    return bool(len(no_time)) and bool(np.isin(no_time, end).any())


def _add_up(first: int, outer: Ints, after: Ints, values: Ints | int, count: int) -> Ints:
    """For each row `first` and the values of those that hold it, which reach from behind `outer` to before `after`."""
    changes = np.zeros(count + 1, np.int64)
    changes[0], changes[outer + 1] = first, values
    np.subtract.at(changes, after, values)
    return np.cumsum(changes[:-1])


def _by_level(level: Ints) -> list[Ints]:
    """The rows of each level, outermost first."""
    deepest = int(level.max(initial=0))
    if deepest < FEW_LEVELS:
        return [np.flatnonzero(level == number) for number in range(deepest + 1)]
    order = np.argsort(level.astype(np.uint16) if deepest < 2**16 else level, kind="stable")
    return np.split(order, np.cumsum(np.bincount(level))[:-1])


def _count_begun(start: Ints, called: Ints) -> Ints:
    """How many ranges began before each call or with it, both by start: to merge two runs is faster than to search."""
    merged = np.argsort(np.concatenate([start, called]), kind="stable")
    return np.flatnonzero(merged >= len(start)) - np.arange(len(called))


def _find_parents(outer: Ints, after: Ints, level: Ints) -> Ints:
    """For nested ranges by start: the innermost of those that hold others, which changes behind each and after it."""
    mine = level[outer]
    by_level = np.concatenate(_by_level(mine))
    # Of one a level deeper than the one before it, that one; else its sibling's: `eldest` are places in `by_level`.
    eldest = np.flatnonzero(np.append(False, mine[1:] > mine[:-1])[by_level])
    parent = np.full(len(outer), NONE)
    if len(eldest):
        parent[by_level[eldest[0] :]] = outer[np.repeat(by_level[eldest] - 1, np.diff(eldest, append=len(outer)))]
    return _add_up(NONE, outer, after, outer - parent, len(level))


def find_inner(start: Ints, end: Ints, parent: Ints, called: Ints, returned: Ints) -> Ints:
    """For nested ranges by start: the innermost around each call, the calls in any order."""
    return _leave_ended(np.append(end, LATEST), parent, np.searchsorted(start, called, side="right") - 1, returned)


def _leave_ended(ends: Ints, parent: Ints, inner: Ints, returned: Ints) -> Ints:
    """Outward from a range that began before each call to the first that ends after it; changes `inner`."""
    waiting = np.flatnonzero(ends[inner] < returned)
    while len(waiting):
        outer = parent[inner[waiting]]
        inner[waiting] = outer
        waiting = waiting[ends[outer] < returned[waiting]]
    return inner


def _sum_up(
    parent: Ints, level: Ints, outer: Ints, after: Ints, inner: Ints, first: Ints, last: Ints
) -> tuple[Ints, Ints, Ints]:
    """For nested ranges: first start, last end and number of the calls in each."""
    start, end = np.full(len(parent) + 1, LATEST), np.full(len(parent) + 1, NONE)  # the last place is that of no range
    _span(start, end, inner, first, last)
    if (after[outer] - outer).sum() < FEW_LEVELS * len(parent):  # over all rows in each; the gaps between are not used
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
    for row in np.lexsort((-np.arange(len(start)), length))[::-1]:  # the shortest comes last and stays
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
