from pathlib import Path

import polars as pl

from nightjar_profiling.analyses.outlived import explain_outlived, find_outlived, find_readers
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.profiling.builders import Hlo, TraceBuilder, hlo_proto, program

CHAIN = {
    "entry": [
        Hlo("parameter.1"),
        Hlo("dot.1", operands=("parameter.1",)),
        Hlo("bitcast.1", operands=("dot.1",)),
        Hlo("sine.1", operands=("bitcast.1",)),
        Hlo("add.1", operands=("dot.1", "sine.1")),
        Hlo("copy.1", operands=("parameter.1",)),
        Hlo("tuple.1", operands=("add.1", "copy.1")),
    ]
}


def outlived_of(trace: TraceBuilder, folder: Path) -> pl.DataFrame:
    raw = read_raw(trace.hlo(7, hlo_proto(CHAIN)).write(folder))
    return find_outlived(raw.tables["ops"], raw.programs)


def test_a_thunk_that_ends_after_its_reader_has_begun_is_found_with_what_lies_after(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 100).thunk("sine.1", 70, 50).thunk("add.1", 120, 5)
    found = outlived_of(trace, tmp_path)
    assert found.select("instruction", "reader", "duration_ns", "impossible_ns").rows() == [
        ("dot.1", "sine.1", 100, 30)
    ]
    (warning,) = explain_outlived(found, 155)
    assert "1 ops end after an op that reads their result has begun, such as 'dot.1', read by 'sine.1'" in warning


def test_thunks_that_run_beside_each_other_and_read_nothing_of_each_other_are_possible(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 100).thunk("copy.1", 10, 300).thunk("sine.1", 100, 5)
    assert outlived_of(trace, tmp_path).is_empty()
    assert explain_outlived(outlived_of(trace, tmp_path), 405) == []


def test_an_op_is_cut_off_where_its_reader_began_and_is_uncertain_as_a_whole(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 100).thunk("copy.1", 10, 300).thunk("sine.1", 70, 50)
    raw = read_raw(trace.hlo(7, hlo_proto(CHAIN)).write(tmp_path))
    tables = make_tables(raw)
    rows = tables.ops.select("instruction", "duration_ns", "uncertain_ns").rows()
    assert rows == [("dot.1", 70, 70), ("copy.1", 300, 0), ("sine.1", 50, 0)]
    assert find_outlived(tables.ops, raw.programs).is_empty()


def test_little_that_is_cut_off_is_a_busy_machine_and_no_warning(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 100).thunk("sine.1", 99, 50)
    assert explain_outlived(outlived_of(trace, tmp_path), 149) == []


def test_readers_in_another_run_of_the_program_are_no_readers(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 100, run_id=1).thunk("sine.1", 50, 10, run_id=2)
    assert outlived_of(trace, tmp_path).is_empty()


def test_of_a_thunk_that_runs_again_in_a_loop_each_run_is_judged_by_the_reader_after_it(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 10).thunk("sine.1", 10, 10).thunk("dot.1", 20, 15).thunk("sine.1", 30, 10)
    assert outlived_of(trace, tmp_path).select("start_ns", "impossible_ns").rows() == [(1_000_020, 5)]


def test_kernels_of_a_gpu_may_begin_before_what_they_read_has_ended(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for name, start in (("dot.1", 0), ("sine.1", 50)):
        trace.event("/device:GPU:0", "Stream #14(Kernel)", name, start, 60, hlo_op=name, program_id=7, run_id=1)
    assert outlived_of(trace, tmp_path).is_empty()


def test_a_reader_behind_the_parameter_of_a_computation_is_found_and_one_inside_a_fusion_is_not() -> None:
    found = program(
        {
            "fused": [Hlo("parameter.2"), Hlo("sine.2", operands=("parameter.2",))],
            "body": [Hlo("parameter.3"), Hlo("negate.3", operands=("parameter.3",))],
            "entry": [
                Hlo("dot.1"),
                Hlo("fusion.1", operands=("dot.1",), calls=("fused",)),
                Hlo("call.1", operands=("fusion.1",), calls=("body",)),
                Hlo("add.1", operands=("call.1",)),
            ],
        }
    )
    ran = ("dot.1", "fusion.1", "negate.3", "add.1")
    assert sorted(find_readers(found, ran)) == [
        ("dot.1", "fusion.1"),
        ("fusion.1", "add.1"),
        ("fusion.1", "negate.3"),
        ("negate.3", "add.1"),
    ]
