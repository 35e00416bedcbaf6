from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.analyses.communication.overlap import fill_hidden, find_exposed, summarise_overlap
from tests.profiling.tabled import collective, op, tables

REDUCE = [collective("all-reduce.1", 0, 1)]


def hidden(*ops: dict[str, object]) -> list[int | None]:
    found = tables(ops=ops, collectives=REDUCE)
    return fill_hidden(found.ops, found.collectives)["hidden_ns"].to_list()


def test_communication_is_hidden_while_the_device_computes() -> None:
    assert hidden(op("all-reduce.1", 100, 50), op("dot.1", 120, 100)) == [30, None]


def test_computation_of_another_device_or_rank_hides_nothing() -> None:
    assert hidden(op("all-reduce.1", 0, 9), op("dot.1", 0, 9, device=1), op("dot.1", 0, 9, rank=1)) == [0, None, None]


def test_nccl_kernels_communicate_even_without_hlo() -> None:
    found = op(None, 0, 10, program_id=None, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)")
    assert hidden(found, op("dot.1", 5, 10)) == [5, None]


def test_a_device_without_communication_is_summed_without_a_share() -> None:
    (row,) = summarise_overlap(tables(ops=[op("dot.1", 0, 7), op("dot.2", 3, 7)])).rows(named=True)
    assert row == {
        **{"rank": 0, "device": 0, "compute_ns": 10, "communication_ns": 0, "hidden_ns": 0, "exposed_ns": 0},
        "hidden_fraction": None,
    }


SPANS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 60), st.integers(0, 30), st.integers(0, 1)), min_size=1, max_size=25
)


@given(SPANS)
def test_hidden_time_is_that_of_a_sweep_over_every_nanosecond(spans: list[tuple[bool, int, int, int]]) -> None:
    ops = [op("all-reduce.1" if talks else "dot.1", start, took, device=on) for talks, start, took, on in spans]
    found = hidden(*ops)
    for (talks, start, took, on), ns in zip(spans, found, strict=True):
        busy = {t for other, s, d, o in spans if not other and o == on for t in range(s, s + d)}
        assert ns == (len(busy & set(range(start, start + took))) if talks else None)
    summary = summarise_overlap(tables(ops=ops, collectives=REDUCE))
    assert summary.select(pl.sum("hidden_ns") + pl.sum("exposed_ns")).item() == sum(d for t, _, d, _ in spans if t)
    assert summary.select(pl.col("exposed_ns").min() >= 0).item()


@given(SPANS)
def test_exposed_intervals_are_those_in_which_only_communication_runs(spans: list[tuple[bool, int, int, int]]) -> None:
    ops = [op("all-reduce.1" if talks else "dot.1", start, took, device=on) for talks, start, took, on in spans]
    found = find_exposed(tables(ops=ops, collectives=REDUCE))
    for device in (0, 1):
        talk, work = (
            {t for talks, s, d, on in spans if on == device and talks is kind for t in range(s, s + d)}
            for kind in (True, False)
        )
        rows = found.filter(pl.col("device") == device).select("start_ns", "duration_ns").rows()
        covered = [t for start, took in rows for t in range(start, start + took)]
        assert covered == sorted(talk - work)
        assert all(start + took < after for (start, took), (after, _) in pairwise(rows))
