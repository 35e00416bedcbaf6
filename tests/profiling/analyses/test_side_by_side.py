import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.analyses.modules import tabulate_modules
from nightjar_profiling.analyses.side_by_side import divide_moments, ran_side_by_side
from tests.profiling.tabled import tables

SPANS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=12)


def make_ops(spans: list[tuple[int, int, int]]) -> pl.DataFrame:
    schema = {"device": pl.Int64, "start_ns": pl.Int64, "duration_ns": pl.Int64}
    return pl.DataFrame(spans, schema=schema, orient="row").with_columns(rank=pl.lit(0, pl.Int64))


@given(SPANS)
def test_every_moment_is_divided_equally_among_the_ops_that_run_then(spans: list[tuple[int, int, int]]) -> None:
    tick_by_tick = [0.0] * len(spans)
    for device in (0, 1):
        for moment in range(60):
            running = [n for n, (on, at, ns) in enumerate(spans) if on == device and at <= moment < at + ns]
            for number in running:
                tick_by_tick[number] += 1 / len(running)
    divided = divide_moments(make_ops(spans))["busy_ns"].to_list()
    assert all(abs(ours - ticks) <= 0.5 + 1e-9 for ours, ticks in zip(divided, tick_by_tick, strict=True))


@given(SPANS)
def test_the_sum_is_the_time_in_which_the_devices_were_busy(spans: list[tuple[int, int, int]]) -> None:
    scaled = [(device, 1000 * at, 1000 * ns) for device, at, ns in spans]
    ops = divide_moments(make_ops(scaled))
    assert abs(int(ops["busy_ns"].sum()) - int(measure_busy(ops)["busy_ns"].sum())) <= len(spans)


def test_a_summary_tells_only_what_differs() -> None:
    assert ran_side_by_side(1000, 980)
    assert not ran_side_by_side(1000, 995)
    assert not ran_side_by_side(1000, None)
    assert not ran_side_by_side(2, 0)  # a nanosecond of three ops is a third of one for each


def test_a_program_without_modules_and_phases_has_no_tree() -> None:
    assert tabulate_modules(tables(ops=[{"program_id": 1, "instruction": "a", "duration_ns": 5}])).is_empty()
