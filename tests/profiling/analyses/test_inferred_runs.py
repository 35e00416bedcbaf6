"""Executions that a trace does not record: by steps, by repeated kernels, else one."""

from typing import Any

import polars as pl

from nightjar_profiling.analyses.inferred_runs import infer_runs
from nightjar_profiling.capture_folder.tables import SCHEMAS, make_table


def infer(names: str, steps: list[tuple[int, int]] | None = None, **columns: Any) -> pl.DataFrame:
    """The executions' numbers of ops of 10 ns, one after another, that letters name."""
    common = {"rank": 0, "device": 0, "duration_ns": 10, "kind": "kernel", **columns}
    ops = [{**common, "kernel": name, "start_ns": 10 * at} for at, name in enumerate(names)]
    rows = [
        {"rank": 0, "step": number, "start_ns": start, "duration_ns": end - start}
        for number, (start, end) in enumerate(steps or [])
    ]
    tables = {name: make_table(name, ()) for name in SCHEMAS}
    return infer_runs({**tables, "ops": make_table("ops", ops), "steps": make_table("steps", rows)})["ops"]


def test_repeated_kernels_tell_the_executions_of_a_loop_with_an_inner_loop() -> None:
    ops = infer("i" + "abbbc" * 4)
    assert ops["execution"].to_list() == [None] + [run for run in range(4) for _ in range(5)]
    assert set(ops["program_id"]) == {0}
    assert set(ops["instruction"]) == set("iabc")


def test_steps_of_the_host_go_before_repetition() -> None:
    assert infer("abab", [(0, 20), (20, 40)])["execution"].to_list() == [0, 0, 1, 1]


def test_work_that_does_not_repeat_is_one_execution() -> None:
    assert infer("abcd")["execution"].to_list() == [0] * 4
    assert infer("abbaab")["execution"].to_list() == [0, 0, 0, 0, 0, 0]


def test_executions_that_a_trace_records_stay() -> None:
    ops = infer("abab", program_id=5, execution=3)
    assert set(ops["execution"]) == {3}
