import sqlite3
import time
from collections.abc import Iterable

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.readers import projection as module
from nightjar_profiling.readers.projection import Calls, Ints, Ops, Projection, Ranges, project
from tests.places import SHARED_DATA

DATA = SHARED_DATA / "nsys-sqlite"
REAL = DATA / "h100_2gpu_1s.sqlite"

Span = tuple[int, int]
RangeRow = tuple[int, int, int]  # start, end, thread
CallRow = tuple[int, int, int, int]  # start, end, thread, correlation; a thread's process is its first digit
OpRow = tuple[int, int, int, int]  # start, end, process, correlation


def columns(rows: Iterable[tuple[int, ...]], width: int) -> list[Ints]:
    return list(np.array(list(rows), np.int64).reshape(-1, width).T.copy())


def run(ranges: list[RangeRow], calls: list[CallRow], ops: list[OpRow]) -> Projection:
    r, c, o = columns(ranges, 3), columns(calls, 4), columns(ops, 4)
    return project(
        Ranges(start=r[0], end=r[1], thread=r[2]),
        Calls(start=c[0], end=c[1], thread=c[2], process=c[2] // 10, correlation=c[3]),
        Ops(start=o[0], end=o[1], process=o[2], correlation=o[3]),
    )


def check_against_the_rules(ranges: list[RangeRow], calls: list[CallRow], ops: list[OpRow]) -> None:
    """Compares a projection with the rules of the module, applied to every pair."""
    found = run(ranges, calls, ops)

    def contains(outer: RangeRow, inner: tuple[int, ...]) -> bool:
        return outer[2] == inner[2] and outer[0] <= inner[0] and inner[1] <= outer[1]

    def innermost(numbers: Iterable[int]) -> int:
        return min(numbers, key=lambda n: (ranges[n][1] - ranges[n][0], -ranges[n][0], -n), default=-1)

    for number, one in enumerate(ranges):
        around = [
            n for n, other in enumerate(ranges) if contains(other, one) and (other != one or n < number) and n != number
        ]
        assert found.parent[number] == innermost(around)
        inside = [call for call in calls if contains(one, call)]
        spans = [[(o[0], o[1]) for o in ops if (o[2], o[3]) == (c[2] // 10, c[3])] for c in inside]
        launched = [span for part in spans for span in part]
        assert found.n_calls[number] == sum(bool(part) for part in spans)
        if launched:
            assert found.start[number] == min(span[0] for span in launched)
            assert found.end[number] == max(span[1] for span in launched)
        parent = found.parent[number]
        assert found.level[number] == (0 if parent < 0 else found.level[parent] + 1)
    for number, op in enumerate(ops):
        made = [n for n, call in enumerate(calls) if (call[2] // 10, call[3]) == (op[2], op[3])]
        assert found.op_call[number] == (made[0] if made else -1)
        around = [n for n, one in enumerate(ranges) if made and contains(one, calls[made[0]])]
        assert found.op_range[number] == innermost(around)


def span(length: int = 12) -> st.SearchStrategy[Span]:
    return st.tuples(st.integers(0, 30), st.integers(0, length)).map(lambda pair: (pair[0], pair[0] + pair[1]))


THREADS = st.sampled_from([10, 11, 20])
RANGES = st.lists(st.builds(lambda s, t: (*s, t), span(20), THREADS), max_size=9)
CALLS = st.lists(
    st.builds(lambda s, t, c: (*s, t, c), span(4), THREADS, st.integers(1, 12)),
    max_size=9,
    unique_by=lambda call: (call[2] // 10, call[3]),
)
OPS = st.lists(
    st.builds(lambda s, p, c: (*s, p, c), span(), st.sampled_from([1, 2, 3]), st.integers(1, 14)), max_size=12
)


@given(RANGES, CALLS, OPS)
def test_any_ranges_and_ops_obey_the_rules(ranges: list[RangeRow], calls: list[CallRow], ops: list[OpRow]) -> None:
    check_against_the_rules(ranges, calls, ops)


@st.composite
def nested_ranges(draw: st.DrawFn) -> list[RangeRow]:
    """Ranges as push and pop make them, in the order of their ends or starts."""
    rows: list[RangeRow] = []
    for thread in (10, 11, 20):
        time, stack = 0, []
        for push in draw(st.lists(st.booleans(), max_size=14)):
            time += draw(st.integers(1, 3))
            if push:
                stack.append(time)
            elif stack:
                rows.append((stack.pop(), time, thread))
    return sorted(rows) if draw(st.booleans()) else rows


@given(nested_ranges(), CALLS, OPS, st.sampled_from([1, 3, 1 << 15]), st.sampled_from([0, 8]))
def test_nested_ranges_are_projected_by_the_rules_in_pieces_of_any_size_and_depth(
    ranges: list[RangeRow], calls: list[CallRow], ops: list[OpRow], piece: int, few_levels: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", piece)
        patch.setattr(module, "SMALL", 1)
        patch.setattr(module, "FEW_LEVELS", few_levels)
        check_against_the_rules(ranges, calls, ops)


@pytest.mark.parametrize(
    ("ranges", "calls"),
    [
        ([(0, 1, 20), (1, 2, 20)], [(1, 1, 20, 1)]),  # no time, at the end of one range and the start of another
        ([(1, 3, 20), (0, 2, 20)], [(1, 1, 20, 1)]),  # two ranges as short
        ([(1, 1, 10), (1, 2, 10), (0, 1, 10)], []),
    ],
)
def test_what_touches_is_projected_by_the_rules(ranges: list[RangeRow], calls: list[CallRow]) -> None:
    check_against_the_rules(ranges, calls, [(0, 0, 2, 1)])


def test_correlation_ids_that_lie_far_apart_need_no_table_of_their_width() -> None:
    far = 1 << 40
    check_against_the_rules([(0, 9, 10)], [(1, 2, 10, 5), (3, 4, 10, far)], [(50, 60, 1, far), (70, 80, 1, far + 1)])


def many_kernels(n: int) -> tuple[Ranges, Calls, Ops]:
    """A run of 4 threads that launch programs of 200 thunks of one kernel each."""
    kernel = np.arange(n)
    start, thread, process = kernel * 10_000, kernel // 200 % 4, np.zeros(n, np.int64)
    begin = np.where(kernel % 200, start, start - 50)
    outer = Ranges(start=start[::200] - 60, end=start[::200] + 2_000_000 - 100, thread=thread[::200])
    pairs = ((outer.start, begin), (outer.end, start + 8_000), (outer.thread, thread))
    order = np.argsort(np.concatenate(pairs[0]), kind="stable")  # as a profiler writes them
    starts, ends, threads = (np.concatenate(pair)[order] for pair in pairs)
    return (
        Ranges(start=starts, end=ends, thread=threads),
        Calls(start=start + 2_000, end=start + 6_000, thread=thread, process=process, correlation=kernel + 1_000),
        Ops(start=start + 9_000, end=start + 15_000, process=process, correlation=kernel + 1_000),
    )


@pytest.mark.slow
def test_the_time_of_ten_times_the_kernels_is_not_that_of_their_square() -> None:
    took = {}
    for n in (100_000, 1_000_000):
        given, times = many_kernels(n), []
        for _ in range(3):
            begin = time.process_time()
            assert project(*given).n_calls.sum() == 2 * n  # of the thunk and of its program
            times.append(time.process_time() - begin)
        took[n] = min(times)
    assert took[1_000_000] < 20 * took[100_000]


@pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is not there: NIGHTJAR_TEST_DATA names its folder")
def test_a_real_report_is_projected_as_nsys_itself_projects_it() -> None:
    with sqlite3.connect(f"file:{REAL}?mode=ro", uri=True) as base:
        text = np.array([row[0] for row in base.execute("SELECT text FROM NVTX_EVENTS")])
        ranges = columns(base.execute("SELECT start, end, globalTid FROM NVTX_EVENTS"), 3)
        calls = columns(base.execute("SELECT start, end, globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"), 4)
        kinds = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
        select = "SELECT start, end, globalPid, correlationId FROM"
        ops = columns((row for kind in kinds for row in base.execute(f"{select} {kind}")), 4)
    base.close()
    found = project(
        Ranges(start=ranges[0], end=ranges[1], thread=ranges[2]),
        Calls(start=calls[0], end=calls[1], thread=calls[2], process=calls[2] & ~0xFFFFFF, correlation=calls[3]),
        Ops(start=ops[0], end=ops[1], process=ops[2], correlation=ops[3]),
    )
    rows = np.flatnonzero(found.n_calls)
    parent = found.parent[rows]
    ours = pl.DataFrame(
        {
            "Name": text[rows],
            "Orig Start": ranges[0][rows],
            "Orig Duration": (ranges[1] - ranges[0])[rows],
            "Projected Start": found.start[rows],
            "Projected Duration": (found.end - found.start)[rows],
            "NumGPUOps": found.n_calls[rows],
            "Lvl": found.level[rows],
            "Parent": np.where(parent >= 0, ranges[0][parent], -1),
        }
    )
    theirs = pl.read_parquet(REAL.with_name("h100_2gpu_1s.nvtx_gpu_proj.parquet"))
    theirs = theirs.rename({name: name.split(":")[0] for name in theirs.columns})
    parents = theirs.select(ParentId="RangeId", Parent="Orig Start")
    theirs = theirs.join(parents, on="ParentId", how="left").with_columns(pl.col("Parent").fill_null(-1))
    assert len(ours) == 3242
    assert ours.sort(ours.columns).equals(theirs.select(ours.columns).sort(ours.columns))
