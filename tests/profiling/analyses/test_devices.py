"""Gaps, steps, programs, warm-up, categories: what the ops of a device tell."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.analyses.categories import summarise_categories
from nightjar_profiling.analyses.communication.overlap import summarise_overlap
from nightjar_profiling.analyses.compile_time import summarise_compile
from nightjar_profiling.analyses.gaps import find_gaps, summarise_devices
from nightjar_profiling.analyses.memory import attribute_buffers, summarise_memory
from nightjar_profiling.analyses.steps import sum_executions, summarise_programs, summarise_steps
from nightjar_profiling.analyses.warmup import find_steady_state
from nightjar_profiling.capture_folder.tables import Tables
from tests.profiling.tabled import RUN, collective, op, tables


def execution(number: int, start_ns: int = 0, duration_ns: int = 10, **more: Any) -> dict[str, Any]:
    return {**RUN, "execution": number, "start_ns": start_ns, "duration_ns": duration_ns, **more}


def test_without_launch_times_the_cause_of_a_gap_is_not_guessed() -> None:
    found = tables(ops=[op("a", 0, 10), op("b", 30, 10)])
    assert find_gaps(found)["cause"].to_list() == [None]
    (row,) = summarise_devices(found).rows(named=True)
    assert (row["launch_gap_ns"], row["queue_gap_ns"], row["launch_latency_ns_p50"]) == (None, None, None)


def test_short_gaps_are_left_out_on_demand() -> None:
    ops = [op("a", 0, 1), op("b", 4, 1), op("c", 15, 1)]
    assert find_gaps(tables(ops=ops), shortest_ns=5)["duration_ns"].to_list() == [10]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=20))
def test_busy_and_idle_time_make_up_the_span(spans: list[tuple[int, int]]) -> None:
    found = tables(ops=[op("a", start, took) for start, took in spans])
    (row,) = summarise_devices(found).rows(named=True)
    assert row["busy_ns"] == len({t for start, took in spans for t in range(start, start + took)})
    assert row["busy_ns"] + row["idle_ns"] == row["span_ns"]
    assert find_gaps(found)["duration_ns"].sum() == row["idle_ns"]


def test_steps_that_are_counted_anew_in_each_epoch_have_their_own_ops() -> None:
    steps = [{"rank": 0, "step": n % 2, "start_ns": 100 * n, "duration_ns": 90} for n in range(4)]
    found = summarise_steps(tables(ops=[op("a", 100 * n + 5, n + 1) for n in range(4)], steps=steps))
    assert found.select("step", "device_ns").rows() == [(0, 1), (0, 3), (1, 2), (1, 4)]


def test_a_program_without_marked_steps_has_none() -> None:
    assert summarise_steps(tables(ops=[op("a", 0, 1)])).is_empty()


def test_an_execution_without_ops_took_no_device_time() -> None:
    assert sum_executions(tables(executions=[execution(0)]))["device_ns"].to_list() == [0]


def test_the_first_execution_of_a_program_that_was_compiled_is_warm_up() -> None:
    compiled = [{"rank": 0, "program_id": 1, "range_id": 1, "start_ns": 0, "duration_ns": 1}]
    runs = [execution(n) for n in range(4)] + [execution(n, program_id=2) for n in range(2)]
    steady = find_steady_state(tables(executions=runs, compile=compiled))
    assert steady.select("program_id", "execution").rows() == [(1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
    reduced = [collective("all-reduce.1", 0, 1)]
    steady = find_steady_state(tables(executions=runs, compile=compiled, collectives=reduced))
    assert steady.select("program_id", "execution").rows() == [(1, 2), (1, 3), (2, 1)]


def test_all_executions_are_kept_if_none_would_remain() -> None:
    reduced = [collective("all-reduce.1", 0, 1)]
    assert find_steady_state(tables(executions=[execution(0)], collectives=reduced)).height == 1


def test_a_program_without_hlo_among_others_with_hlo_is_an_autotuning_trial() -> None:
    programs = [
        {"program_id": 1, "name": "jit_step", "fingerprint": "f"},
        {"program_id": 2, "name": "gemm_fusion_dot.4", "fingerprint": ""},
    ]
    runs = [execution(0), execution(0, program_id=2)]
    assert find_steady_state(tables(programs=programs, executions=runs))["program_id"].to_list() == [1]
    assert find_steady_state(tables(programs=programs[1:], executions=runs[1:])).height == 1  # a trace without any HLO


def test_an_execution_cut_off_by_the_end_of_the_trace_is_not_steady() -> None:
    runs = [execution(0, complete=True), execution(1, complete=False)]
    assert find_steady_state(tables(executions=runs))["execution"].to_list() == [0]


@pytest.mark.parametrize(
    "analysis",
    [
        *(find_gaps, summarise_devices, summarise_programs, summarise_steps, summarise_categories, summarise_overlap),
        *(summarise_compile, summarise_memory, attribute_buffers),
    ],
)
def test_an_empty_capture_has_an_empty_table(analysis: Callable[[Tables], pl.DataFrame]) -> None:
    assert analysis(tables()).is_empty()
