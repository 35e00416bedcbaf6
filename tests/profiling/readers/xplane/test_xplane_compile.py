"""Compilation in a trace that another program made: by the annotations that JAX and XLA leave in it."""

from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_profiling.analyses.compile_time import account_compile_time
from nightjar_profiling.capture_folder.tables import SCHEMAS, fill_table
from nightjar_profiling.readers.xplane.xplane import make_compile, read_raw
from tests.profiling.builders import training_trace

PYTHON = ("/host:CPU", "python")
POOL = ("/host:CPU", "tf_PjRtCompilerThreadPool/1")
CODEGEN = ("/host:CPU", "tf_xla-cpu-codegen/2")


def compiled(folder: Path) -> pl.DataFrame:
    """A call of the compiler, whose work a pool does, which hands some on to another; and what is none of it."""
    trace = training_trace().event(*PYTHON, "backend_compile_and_load", 100, 1000).event(*PYTHON, "mine", 2000, 50)
    trace.event(*POOL, "PjRtCpuClient::Compile", 150, 900).event(*POOL, "hlo normalization (jit_step)", 200, 100)
    trace.event(*POOL, "dce", 210, 40).event(*POOL, "JitCompiler::Compile", 400, 600)
    trace.event(*CODEGEN, "TaskDispatcher::dispatch", 450, 500).event(*CODEGEN, "late", 3000, 10)
    trace.event("/host:CPU", "tf_data/3", "load a batch", 500, 100)
    return read_raw(trace.write(folder)).tables["compile"]


def test_each_range_lies_in_what_waited_for_it(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    names = dict(found.select("range_id", "name").iter_rows())
    around = {names[own]: names.get(parent) for own, parent in found.select("range_id", "parent_id").iter_rows()}
    assert around == {
        "backend_compile_and_load": None,
        "PjRtCpuClient::Compile": "backend_compile_and_load",
        "hlo normalization": "PjRtCpuClient::Compile",
        "dce": "hlo normalization",
        "JitCompiler::Compile": "PjRtCpuClient::Compile",
        "TaskDispatcher::dispatch": "JitCompiler::Compile",
    }
    assert dict(found.select("name", "self_ns").iter_rows())["PjRtCpuClient::Compile"] == 200
    assert dict(found.schema) == SCHEMAS["compile"]


def test_a_call_of_the_compiler_inside_of_another_is_a_part_of_it(tmp_path: Path) -> None:
    trace = training_trace().event(*PYTHON, "backend_compile_and_load", 100, 1000)
    found = read_raw(trace.event(*PYTHON, "PjRtCpuClient::Compile", 150, 900).write(tmp_path)).tables["compile"]
    assert found.select("range_id", "parent_id").rows() == [(0, None), (1, 0)]


def test_what_phases_answer_for_sums_to_what_one_waited(tmp_path: Path) -> None:
    assert round(account_compile_time(compiled(tmp_path))["wall_ns"].sum()) == 1000


def test_the_program_of_a_call_is_the_one_that_its_passes_name(tmp_path: Path) -> None:
    assert compiled(tmp_path)["program"].unique().to_list() == ["jit_step"]


def test_a_trace_in_which_nothing_was_compiled_has_no_such_table(tmp_path: Path) -> None:
    assert "compile" not in read_raw(training_trace().event(*PYTHON, "mine", 0, 5).write(tmp_path)).tables


SPAN = st.tuples(
    st.integers(1, 3), st.integers(0, 20), st.integers(1, 20), st.sampled_from(["PjRtClient::Compile", "a"])
)


@settings(deadline=None)
@given(st.lists(SPAN, min_size=1, max_size=8))
def test_parents_of_any_ranges_form_no_circle(spans: list[tuple[int, int, int, str]]) -> None:
    thread, start, duration, name = (np.array(column) for column in zip(*spans, strict=True))
    times = {"thread": thread, "start_ns": start, "duration_ns": duration}
    found = make_compile(
        fill_table("ranges", len(spans), rank=0, range_id=np.arange(len(spans)), name=pl.Series(name), **times), {2, 3}
    )
    parents = dict(found.select("range_id", "parent_id").iter_rows())
    for number in parents:
        seen: list[int] = []
        while number is not None:
            assert number not in seen
            seen.append(number)
            number = parents[number]
