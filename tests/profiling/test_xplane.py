from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.ingest import make_tables
from nightjar_profiling.load.xplane import merge_traces, op_rows, read_trace
from tests.profiling.builders import Hlo, TraceBuilder, hlo_proto, training_trace

# Traces of public repositories, which are not ours to copy: a folder beside the checkout, where there is one.
DATA = os.environ.get("NIGHTJAR_TEST_DATA", str(Path(__file__).parents[3] / "shared" / "data"))
REAL_GPU_TRACE = Path(DATA) / "xplane" / "jax_conv_minimal_08.xplane.pb"
LOOP = {
    "body": [Hlo("parameter.1"), Hlo("dot.1", frame=3)],
    "entry": [Hlo("while.1", calls=("body",)), Hlo("call.2", operands=("while.1",))],
}


def test_a_thunk_is_read_with_its_program_and_time(tmp_path: Path) -> None:
    trace = read_trace(training_trace().write(tmp_path))
    assert [(op.instruction, op.program_id, op.duration_ns) for op in trace.ops][:2] == [
        ("dot.1", 7, 60),
        ("fusion.1", 7, 30),
    ]
    assert trace.ops[1].start_ns == 1_000_060
    assert trace.programs[7].name == "jit_step"
    assert trace.warnings == ()


def test_a_container_is_left_out_where_what_it_contains_was_recorded(tmp_path: Path) -> None:
    trace = (
        TraceBuilder().hlo(7, hlo_proto(LOOP)).thunk("while.1", 0, 100).thunk("dot.1", 10, 50).thunk("call.2", 100, 5)
    )
    assert {op.instruction for op in read_trace(trace.write(tmp_path)).ops} == {"dot.1", "call.2"}


def test_without_hlo_a_thunk_that_encloses_others_is_left_out_and_the_lack_is_said(tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("while.1", 0, 100).thunk("dot.1", 10, 50).thunk("dot.2", 60, 40).thunk("add.1", 100, 5)
    found = read_trace(trace.write(tmp_path))
    assert [op.instruction for op in found.ops] == ["dot.1", "dot.2", "add.1"]
    assert "no HLO for 1 of the programs" in found.warnings[0]


def test_an_asynchronous_thunk_lasts_until_its_end_event(tmp_path: Path) -> None:
    trace = training_trace().thunk("dot.1", 200, 10, _p=42).thunk("add.1", 210, 5, _p=43)
    trace.event("/host:CPU", "tf_XLAEigen/2", "end: dot.1", 290, 1, _c=42)
    trace.event("/host:CPU", "tf_XLAEigen/1", "end: add.1", 214, 1, _c=43)
    found = {op.start_ns: op.duration_ns for op in read_trace(trace.write(tmp_path)).ops}
    assert found[1_000_200] == 90
    assert found[1_000_210] == 5


def test_kernels_are_counted_and_their_launches_are_not(tmp_path: Path) -> None:
    trace = training_trace()
    kernel: dict[str, int | str] = {"hlo_op": "dot.1", "program_id": "7"}
    trace.event("/device:GPU:3", "Stream #14(Kernel)", "gemm", 500, 40, **kernel)
    trace.event("/device:GPU:3", "Stream #14(Kernel)", "memcpy", 540, 4)
    trace.event("/device:GPU:3", "XLA Ops", "dot.1", 500, 40, **kernel)
    ops = read_trace(trace.write(tmp_path)).ops
    assert [(op.kernel, op.device, op.program_id, op.duration_ns) for op in ops] == [
        ("gemm", 3, 7, 40),
        ("memcpy", 3, None, 4),
    ]


def test_an_execution_spans_what_shares_a_run_id(tmp_path: Path) -> None:
    trace = training_trace().thunk("dot.1", 500, 60, run_id=2).thunk("add.1", 560, 2, run_id=2)
    rows = op_rows(read_trace(trace.write(tmp_path)).ops)
    assert [(row["execution"], row["start_ns"], row["duration_ns"]) for row in rows["executions"]] == [
        (0, 1_000_000, 100),
        (1, 1_000_500, 62),
    ]
    assert [row["execution"] for row in rows["ops"]] == [0, 0, 0, 0, 1, 1]


def test_ranks_share_an_equal_program_and_keep_differing_ones_apart(tmp_path: Path) -> None:
    other = TraceBuilder().hlo(7, hlo_proto(LOOP, name="jit_other")).thunk("dot.1", 0, 9)
    first, second = training_trace().write(tmp_path, "a.pb"), training_trace().write(tmp_path, "b.pb")
    paths = [first, second, other.write(tmp_path, "c.pb")]
    merged = merge_traces(read_trace(path, rank) for rank, path in enumerate(paths))
    assert {number: found.name for number, found in merged.programs.items()} == {7: "jit_step", 8: "jit_other"}
    assert [op.program_id for op in merged.ops if op.rank == 2] == [8]
    assert make_tables(merged).device_time_ns == 100 + 100 + 9


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no plane .0 bytes."),
        (b"\x0a\xff", "not an XSpace"),
        (b"import jax\n", "holds no plane .11 bytes."),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"bad\.xplane\.pb: {message}"):
        read_trace(path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = training_trace().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match="truncated"):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.xplane.pb")


def test_damaged_hlo_is_named(tmp_path: Path) -> None:
    trace = training_trace()
    event = trace.plane("/host:metadata").event_metadata[7]
    event.stats[0].bytes_value = event.stats[0].bytes_value[:-3]
    with pytest.raises(InputError, match=r"HLO of jit_step\(7\): not an HLO protobuf"):
        read_trace(trace.write(tmp_path))


@pytest.mark.skipif(
    not REAL_GPU_TRACE.is_file(), reason=f"{REAL_GPU_TRACE} is not there: NIGHTJAR_TEST_DATA names its folder"
)
def test_a_real_gpu_trace_is_read_with_its_programs() -> None:
    reader = pytest.importorskip("jax.profiler").ProfileData
    planes = [p for p in reader.from_file(str(REAL_GPU_TRACE)).planes if p.name.startswith("/device:GPU")]
    events = [e for plane in planes for line in plane.lines if line.name.startswith("Stream") for e in line.events]
    trace = read_trace(REAL_GPU_TRACE)
    assert {op.device for op in trace.ops} == set(range(8))
    assert len(trace.ops) == len(events) == 235
    assert sum(op.duration_ns for op in trace.ops) == sum(event.duration_ns for event in events)
    assert {op.instruction for op in trace.ops if op.program_id == 15} <= trace.programs[15].instructions.keys()
    outside = [event for event in events if "hlo_op" not in dict(event.stats)]
    assert sum(op.program_id is None for op in trace.ops) == len(outside)
