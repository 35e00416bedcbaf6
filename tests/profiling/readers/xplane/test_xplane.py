from pathlib import Path
from typing import Any

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.raw import Raw, merge_raw
from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.places import SHARED_DATA
from tests.profiling.builders import TRAINING, Hlo, TraceBuilder, hlo_proto, training_trace
from tests.profiling.xplane_reference import read_ops

# Traces of public repositories, which are not ours to copy: a folder beside the checkout, where there is one.
DATA = SHARED_DATA
REAL_GPU_TRACE = Path(DATA) / "xplane" / "jax_conv_minimal_08.xplane.pb"
COLUMNS = ("device", "program_id", "instruction", "stream", "kernel", "start_ns", "duration_ns")
LOOP = {
    "body": [Hlo("parameter.1"), Hlo("dot.1", frame=3)],
    "entry": [Hlo("while.1", calls=("body",)), Hlo("call.2", operands=("while.1",))],
}
THREAD = ("/host:CPU", "python")


def ops_of(raw: Raw, *columns: str) -> list[tuple[Any, ...]]:
    return raw.tables["ops"].select(columns).rows()


def test_a_thunk_is_read_with_its_program_and_time(tmp_path: Path) -> None:
    raw = read_raw(training_trace().write(tmp_path))
    rows = ops_of(raw, "instruction", "program_id", "start_ns", "duration_ns", "kind", "stream")
    assert rows[:2] == [
        ("dot.1", 7, 1_000_000, 60, "thunk", "tf_XLAEigen/1"),
        ("fusion.1", 7, 1_000_060, 30, "thunk", "tf_XLAEigen/1"),
    ]
    assert raw.programs[7].name == "jit_step"
    assert raw.warnings == ()


def test_a_container_is_left_out_where_what_it_contains_was_recorded(tmp_path: Path) -> None:
    trace = (
        TraceBuilder().hlo(7, hlo_proto(LOOP)).thunk("while.1", 0, 100).thunk("dot.1", 10, 50).thunk("call.2", 100, 5)
    )
    assert ops_of(read_raw(trace.write(tmp_path)), "instruction") == [("dot.1",), ("call.2",)]


def test_without_hlo_a_thunk_that_encloses_others_is_left_out_with_a_warning(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("while.1", 0, 100).thunk("dot.1", 10, 50).thunk("dot.2", 60, 40).thunk("add.1", 100, 5)
    found = read_raw(trace.write(tmp_path))
    assert ops_of(found, "instruction") == [("dot.1",), ("dot.2",), ("add.1",)]
    assert "no HLO for 1 of the programs" in found.warnings[0]


def test_a_thunk_of_no_duration_at_the_end_of_another_is_not_inside_it(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 60).thunk("bitcast.1", 60, 0)
    assert ops_of(read_raw(trace.write(tmp_path)), "instruction") == [("dot.1",), ("bitcast.1",)]


def test_an_asynchronous_thunk_lasts_until_its_end_event(tmp_path: Path) -> None:
    trace = training_trace().thunk("dot.1", 200, 10, _p=42).thunk("add.1", 210, 5, _p=43)
    trace.event("/host:CPU", "tf_XLAEigen/2", "end: dot.1", 290, 1, _c=42)
    trace.event("/host:CPU", "tf_XLAEigen/1", "end: add.1", 214, 1, _c=43)
    found = dict(ops_of(read_raw(trace.write(tmp_path)), "start_ns", "duration_ns"))
    assert found[1_000_200] == 90
    assert found[1_000_210] == 5


def test_kernels_are_counted_and_their_launches_are_not(tmp_path: Path) -> None:
    trace = training_trace()
    kernel: dict[str, int | str] = {"hlo_op": "dot.1", "program_id": "7", "correlation_id": 5}
    trace.event("/device:GPU:3", "Stream #14(Kernel)", "gemm", 500, 40, **kernel)
    trace.event("/device:GPU:3", "Stream #14(Kernel)", "nccl", 540, 4)
    trace.event("/device:GPU:3", "XLA Ops", "dot.1", 500, 40, **kernel)
    trace.event("/host:CPU", "python", "cuLaunchKernel", 450, 9, **kernel)
    rows = ops_of(read_raw(trace.write(tmp_path)), "kernel", "device", "program_id", "duration_ns", "kind", "launch_ns")
    assert rows == [("gemm", 3, 7, 40, "kernel", 1_000_450), ("nccl", 3, None, 4, "kernel", None)]


def test_copies_are_recognised_by_their_details_or_their_launching_call(tmp_path: Path) -> None:
    trace, stream = TraceBuilder(), ("/device:GPU:0", "Stream #15(MemcpyD2H)")
    details = "kind_src:device kind_dst:pinned size:1024 dest:0 async:1"
    trace.event(*stream, "MemcpyD2H", 0, 5, correlation_id=1, memcpy_details=details)
    trace.event(*stream, "Memset", 10, 5, correlation_id=2, Memset_details="kind:Device num_bytes:64 async:1")
    trace.event(*stream, "copyBuffer.kd", 20, 5, correlation_id=3)
    trace.event(*stream, "CudaGraphExec:4", 30, 5, correlation_id=4)
    trace.event(*stream, "gemm", 40, 5, correlation_id=4, cuda_graph_node_id=77)
    trace.event(*THREAD, "hipMemcpy", 2, 1, correlation_id=3, memcpy_details="kind:Unknown size:512 dest:1 async:1")
    assert ops_of(read_raw(trace.write(tmp_path)), "kind", "bytes", "graph_node") == [
        ("memcpy", 1024, None),
        ("memset", 64, None),
        ("memcpy", 512, None),
        ("graph", None, None),
        ("kernel", None, 77),
    ]


def test_ops_of_a_tpu_belong_to_the_module_that_was_running(tmp_path: Path) -> None:
    trace, plane = TraceBuilder(), "/device:TPU:1"
    trace.event(plane, "XLA Modules", "jit_step(7)", 0, 100, run_id=1)
    trace.event(plane, "XLA Modules", "jit_step(7)", 200, 100, run_id=2)
    for start in (0, 200):
        trace.event(plane, "XLA Ops", "%while.1 = (s32[]) while(...), body=%body", start, 60)
        trace.event(plane, "XLA Ops", "%dot.1 = f32[8,8]{1,0} dot(%p, %p)", start + 10, 50)
    trace.event(plane, "XLA Ops", "%add.1 = f32[8]{0} add(%p, %p)", 150, 5)
    trace.event(plane, "Steps", "0", 0, 100)
    rows = ops_of(read_raw(trace.write(tmp_path)), "device", "instruction", "program_id", "execution", "duration_ns")
    assert rows == [(1, "dot.1", 7, 0, 50), (1, None, None, None, 5), (1, "dot.1", 7, 1, 50)]


def test_an_execution_spans_what_shares_a_run_id(tmp_path: Path) -> None:
    trace = training_trace().thunk("dot.1", 500, 60, run_id=-2).thunk("add.1", 560, 2, run_id=-2)
    tables = read_raw(trace.write(tmp_path)).tables
    assert tables["executions"].select("execution", "start_ns", "duration_ns").rows() == [
        (0, 1_000_000, 100),
        (1, 1_000_500, 62),
    ]
    assert tables["ops"]["execution"].to_list() == [0, 0, 0, 0, 1, 1]


def test_steps_and_annotations_of_the_host_are_read_and_the_profilers_own_events_are_not(tmp_path: Path) -> None:
    trace = training_trace().event(*THREAD, "train", 0, 90, step_num=3).event(*THREAD, "$train.py:3 loss", 5, 50)
    trace.event(*THREAD, "mine", 10, 20).event(*THREAD, "ThreadpoolListener::Record", 40, 0)
    tables = read_raw(trace.write(tmp_path)).tables
    assert tables["steps"].rows() == [(0, 3, 1_000_000, 90)]
    ranges = tables["ranges"].select("name", "start_ns", "duration_ns", "range_id", "parent_id").rows()
    assert ranges == [("train", 1_000_000, 90, 0, None), ("mine", 1_000_010, 20, 1, 0)]


def test_ranks_share_an_equal_program_and_keep_differing_ones_apart(tmp_path: Path) -> None:
    other = TraceBuilder().hlo(7, hlo_proto(LOOP, name="jit_other")).thunk("dot.1", 0, 9)
    first, second = training_trace().write(tmp_path, "a.pb"), training_trace().write(tmp_path, "b.pb")
    paths = [first, second, other.write(tmp_path, "c.pb")]
    merged = merge_raw(read_raw(path, rank) for rank, path in enumerate(paths))
    assert {number: found.name for number, found in merged.programs.items()} == {7: "jit_step", 8: "jit_other"}
    assert [program for rank, program in ops_of(merged, "rank", "program_id") if rank == 2] == [8]
    assert make_tables(merged).device_time_ns == 100 + 100 + 9


def test_hlo_that_the_trace_lacks_comes_from_a_dump_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t.dump").mkdir()
    dumped = tmp_path / "t.dump" / "module_0007.jit_step.cpu_after_optimizations.hlo.pb"
    dumped.write_bytes(hlo_proto(TRAINING).SerializeToString())
    raw = read_raw(TraceBuilder().thunk("dot.1", 0, 60).write(tmp_path))
    assert raw.warnings == ()
    assert raw.programs[7].instructions["dot.1"].frame_id == 3


def test_hlo_of_another_build_is_in_a_warning(tmp_path: Path) -> None:
    (warning,) = read_raw(training_trace().thunk("dot.99", 100, 2_000).write(tmp_path)).warnings
    assert "1 instructions that ran (0.002 ms) are not in the HLO of their program, such as 'dot.99'" in warning


def test_a_name_cut_inside_a_character_is_read(tmp_path: Path) -> None:
    trace = training_trace()
    trace.plane("/host:CPU").event_metadata[1].name = b"dot \xc3"
    assert ops_of(read_raw(trace.write(tmp_path)), "kernel")[0] == ("dot \ufffd",)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "holds no plane .0 bytes."), (b"\x0a\xff", "not an XSpace"), (b"import jax\n", "holds no plane .11 bytes.")],
)
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"bad\.xplane\.pb: {message}"):
        read_raw(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = training_trace().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match="truncated"):
        read_raw(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_raw(tmp_path / "none.xplane.pb")


def test_damaged_hlo_is_named(tmp_path: Path) -> None:
    trace = training_trace()
    event = trace.plane("/host:metadata").event_metadata[7]
    event.stats[0].bytes_value = event.stats[0].bytes_value[:-3]
    with pytest.raises(InputError, match=r"HLO of jit_step\(7\): not an HLO protobuf"):
        read_raw(trace.write(tmp_path))


@pytest.mark.skipif(
    not REAL_GPU_TRACE.is_file(), reason=f"{REAL_GPU_TRACE} is not there: NIGHTJAR_TEST_DATA names its folder"
)
@pytest.mark.filterwarnings("ignore:builtin type event_stats")  # of JAX 0.12, in C++, where none can be raised
def test_a_real_gpu_trace_is_read_with_its_programs() -> None:
    reader = pytest.importorskip("jax.profiler").ProfileData
    planes = [p for p in reader.from_file(str(REAL_GPU_TRACE)).planes if p.name.startswith("/device:GPU")]
    events = [e for plane in planes for line in plane.lines if line.name.startswith("Stream") for e in line.events]
    raw = read_raw(REAL_GPU_TRACE)
    ops = raw.tables["ops"]
    assert set(ops["device"]) == set(range(8))
    assert ops.height == len(events) == 235
    assert ops["duration_ns"].sum() == sum(event.duration_ns for event in events)
    assert set(ops.filter(program_id=15)["instruction"]) <= raw.programs[15].instructions.keys()
    outside = [event for event in events if "hlo_op" not in dict(event.stats)]
    assert ops["program_id"].null_count() == len(outside)
    assert ops["launch_ns"].null_count() == 0
    assert set(ops.filter(kind="memcpy")["kernel"]) == {"__amd_rocclr_copyBuffer.kd"}
    assert sorted(ops_of(raw, *COLUMNS), key=str) == sorted(read_ops(REAL_GPU_TRACE), key=str)


def test_a_loop_leaves_its_time_to_what_it_runs_beside_another_program(tmp_path: Path) -> None:
    trace = training_trace().hlo(8, hlo_proto(LOOP, name="jit_other"))
    trace.thunk("while.1", 200, 100, program_id=8).thunk("dot.1", 210, 50, program_id=8)
    ops = read_raw(trace.write(tmp_path)).tables["ops"].filter(program_id=8)
    assert ops.select("instruction", "duration_ns").rows() == [("dot.1", 50)]
