"""Start and end times of the thunks of XLA:CPU.

In: the decoded host plane of a trace. Out: its ops. A thunk is an event with `hlo_op`, on any thread. It may continue
in the thread pool after that event; XLA then writes `end: <op>`, whose `_c` is the thunk's `_p`.

XLA writes `end:` late. The thread that completes a thunk first serves the thunk's waiters: the executor runs the thunks
that became ready there, and `end:` follows after them. So if the interval around an `end:` event (a task of the pool,
or another event) contains thunks that began before it, the thunk was done when the first of them began. In fact it was
done a little earlier, but not before its own event ended (when the call returned) and not before the task began.
`uncertain_ns` is the distance between these times. If nothing is recorded around the `end:` event, as in a trace
without the pool's tasks, there is no sign of work after the thunk's own event, and the thunk ends there.

Source: openxla/xla:xla/backends/cpu/runtime/thunk_executor.cc (`TracedExecute`),
openxla/xla:xla/tsl/concurrency/async_value.h (`AndThen`: the last callback added runs first),
openxla/xla:third_party/tsl/tsl/profiler/backends/cpu/threadpool_listener.cc
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.readers.annotations.nesting import find_parents
from nightjar_profiling.readers.xplane.xplane_host import Decoded
from nightjar_profiling.readers.xplane.xplane_ops import KINDS, THUNK, Ops, make_ops
from nightjar_profiling.readers.xplane.xplane_values import Integers, Texts, constant

END = re.compile(r"end: ")
EXECUTOR = re.compile(r"ThunkExecutor::Execute$")  # runs thunks that have become ready
TASK_START, TASK_STOP = re.compile(r"ThreadpoolListener::StartRegion"), re.compile(r"ThreadpoolListener::StopRegion")


def read_thunks(host: Decoded) -> Ops:
    """Reads the thunks of XLA:CPU, those that contain others included."""
    rows = np.flatnonzero(host.has("hlo_op"))
    end, uncertain = _find_ends(host, rows)
    start, program, count = host.start_ns[rows], host.integers("program_id").take(rows), len(rows)
    instruction = host.texts("hlo_op").take(rows)
    device = host.integers("device_ordinal").take(rows)
    return make_ops(
        count,
        device=np.where(device.known, device.values, 0),
        program=program,
        run=host.integers("run_id").take(rows),
        instruction=Texts(codes=np.where(program.known, instruction.codes, -1), names=instruction.names),
        stream=host.line_names.take(rows),
        kernel=host.names.take(rows),
        kind=Texts(codes=constant(THUNK, count), names=KINDS),
        start_ns=start,
        duration_ns=end - start,
        uncertain=Integers(values=uncertain, known=np.ones(count, np.bool_)),
    )


def _find_ends(host: Decoded, rows: Positions) -> tuple[Positions, Positions]:
    """The end of each thunk, and the width of the interval in which it lies (0: recorded)."""
    start, line = host.start_ns[rows], host.line[rows]
    own_end = start + host.duration_ns[rows]
    uncertain = np.zeros(len(rows), np.int64)
    closing = np.flatnonzero(host.has("_c") & ~host.has("hlo_op") & host.names.match(END))
    if not len(closing):
        return own_end, uncertain
    consumed, produced = host.integers("_c").values[closing], host.integers("_p").take(rows)
    order = np.argsort(consumed, kind="stable")
    at = np.searchsorted(consumed[order], produced.values, side="right") - 1  # the last of equal ones
    met = np.flatnonzero(produced.known & (at >= 0) & (consumed[order][at] == produced.values))
    closed = closing[order][at[met]]
    written = host.start_ns[closed]
    inline, task_ns, contained = _find_first_inline(host, rows, met, closed)
    late = inline < written
    on_thread = host.line[closed] == line[met]
    done = np.where(on_thread, np.maximum(own_end[met], written), written)
    done = np.where(late, np.where(contained, inline, own_end[met]), done)
    end = own_end.copy()
    end[met] = np.maximum(done, start[met])
    uncertain[met] = np.where(late, np.abs(inline - np.maximum(own_end[met], task_ns)), 0)
    return end, uncertain


def _find_first_inline(
    host: Decoded, rows: Positions, met: Positions, closed: Positions
) -> tuple[Positions, Positions, NDArray[np.bool_]]:
    """Finds the first thunk that ran before the `end:` event was written, within the interval around the event.

    Args:
        met: indices in `rows` of the thunks with an `end:` event.
        closed: `end:` event of each of them.

    Returns:
        The start of that thunk (after all events if there is none), the start of the task that contains the event
        (before all events if there is none), and whether any recorded interval contains the event.
    """
    runs = np.concatenate([rows, np.flatnonzero(host.names.match(EXECUTOR))])
    task_line, task_start, task_end = _find_tasks(host)
    line = np.concatenate([host.line[runs], task_line, host.line[closed]])
    start = np.concatenate([host.start_ns[runs], task_start, host.start_ns[closed]])
    end = np.concatenate([host.start_ns[runs] + host.duration_ns[runs], task_end, host.start_ns[closed]])
    order = np.lexsort((-end, start, line))
    parent = np.empty(len(order), np.int64)
    parent[order] = np.append(order, -1)[find_parents(line[order], start[order], end[order])]
    inside = np.where(parent >= 0, parent, len(order) + line)  # outermost on a thread: numbered by thread
    around = inside[len(order) - len(closed) :]
    times = np.sort(start[: len(runs)])
    keys = inside[: len(runs)] * (len(runs) + 1) + np.searchsorted(times, start[: len(runs)])
    by_key = np.argsort(keys)
    first_keys = around * (len(runs) + 1) + np.searchsorted(times, host.start_ns[rows[met]], side="right")
    first = np.append(by_key, 0)[np.searchsorted(keys[by_key], first_keys)]
    is_own = around == met  # an `end:` event inside the event of its thunk: done on return
    exists = (inside[: len(runs)][first] == around) & (start[first] > host.start_ns[rows[met]]) & ~is_own
    in_task = (around >= len(runs)) & (around < len(order))
    task_ns = np.where(in_task, start[np.where(in_task, around, 0)], host.start_ns.min())
    return np.where(exists, start[first], host.start_ns.max() + 1), task_ns, around < len(order)


def _find_tasks(host: Decoded) -> tuple[Positions, Positions, Positions]:
    """Thread, start and end of every task of a thread pool; a task without an end lasts until the last event."""
    begins = host.names.match(TASK_START)
    rows = np.flatnonzero(begins | host.names.match(TASK_STOP))
    rows = rows[np.lexsort((host.start_ns[rows], host.line[rows]))]
    line, when, begin = host.line[rows], host.start_ns[rows], begins[rows]
    last = host.start_ns.max(initial=0) + 1
    following = np.append(when[1:], last)
    following[np.append(line[1:] != line[:-1], True)[: len(rows)]] = last
    return line[begin], when[begin], following[begin]
