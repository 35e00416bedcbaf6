"""Times of accelerators: what a TPU core spends, counted once, and totals equal to those of JAX's own reader."""

import lzma
import re
from pathlib import Path

import polars as pl
import pytest

from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.places import SHARED_DATA
from tests.profiling.builders import TRAINING, Hlo, TraceBuilder, hlo_proto

TPU = "/device:TPU:0"
CONTROL = re.compile(r" (?:while|conditional|call)\(")
GOLDEN = Path(__file__).parents[1] / "golden" / "h100"
TRACES = (*sorted((SHARED_DATA / "xplane").glob("*.xplane.pb")), *sorted(GOLDEN.glob("*.xplane.pb.xz")))


def tpu_trace() -> TraceBuilder:
    return TraceBuilder().event(TPU, "XLA Modules", "jit_step(7)", 0, 100_000, run_id=1)


def times(trace: TraceBuilder, folder: Path) -> dict[str, int]:
    ops = read_raw(trace.write(folder)).tables["ops"]
    return dict(ops.group_by("instruction").agg(pl.col("duration_ns").sum()).iter_rows())


def test_a_long_op_behind_a_short_one_of_the_same_nanosecond_is_counted(tmp_path: Path) -> None:
    trace = tpu_trace()
    for start in (1_000.1, 2_000.1):
        trace.event(TPU, "XLA Ops", "%copy-start.1 = (f32[8]) copy-start(%p)", start, 0.3)
        trace.event(TPU, "XLA Ops", "%copy-done.1 = f32[8]{0:T(256)} copy-done(%copy-start.1)", start + 0.3, 500)
        trace.event(TPU, "XLA Ops", "%empty.1 = () tuple()", start + 0.3, 0)
    assert times(trace, tmp_path) == {"copy-start.1": 0, "copy-done.1": 1_000, "empty.1": 0}


def test_what_the_hlo_says_is_no_control_flow_contains_nothing(tmp_path: Path) -> None:
    program = {"body": [Hlo("dot.1")], "entry": [Hlo("fusion.1"), Hlo("while.1", calls=("body",))]}
    trace = tpu_trace().hlo(7, hlo_proto(program))
    trace.event(TPU, "XLA Ops", "fusion.1", 0, 50).event(TPU, "XLA Ops", "copy-start.1", 10, 1)
    trace.event(TPU, "XLA Ops", "while.1", 100, 60).event(TPU, "XLA Ops", "dot.1", 110, 40)
    assert times(trace, tmp_path) == {"fusion.1": 50, "copy-start.1": 1, "dot.1": 40}


def test_asynchronous_ops_are_ranges_and_no_device_time(tmp_path: Path) -> None:
    trace = tpu_trace().event(TPU, "XLA Ops", "%fusion.1 = f32[8]{0} fusion(%p)", 0, 900)
    trace.event(TPU, "Async XLA Ops", "%copy-start.1 = (f32[8]) copy-start(%p)", 10, 800)
    trace.event("/host:CPU", "python", "train", 0, 1_000)
    assert times(trace, tmp_path) == {"fusion.1": 900}
    ranges = read_raw(trace.write(tmp_path)).tables["ranges"]
    assert ranges.select("domain", "range_id", "duration_ns").rows() == [
        ("TraceMe", 0, 1_000),
        ("/device:TPU:0 Async XLA Ops", 1, 800),
    ]
    assert ranges["name"].to_list() == ["train", "%copy-start.1 = (f32[8]) copy-start(%p)"]


def test_parts_of_a_nanosecond_are_not_lost_in_the_sum(tmp_path: Path) -> None:
    trace = tpu_trace()
    for number in range(100):
        trace.event(TPU, "XLA Ops", "%add.1 = f32[8]{0} add(%p, %p)", 10 + 1.7 * number, 1.7)
    assert times(trace, tmp_path) == {"add.1": 170}


def unpack(trace: Path, folder: Path) -> Path:
    if trace.suffix != ".xz":
        return trace
    path = folder / trace.stem
    path.write_bytes(lzma.decompress(trace.read_bytes()))
    return path


def sum_ours(path: Path) -> dict[int, float]:
    return dict(read_raw(path).tables["ops"].group_by("device").agg(pl.col("duration_ns").sum()).iter_rows())


def sum_jax(path: Path) -> dict[int, float]:
    from jax.profiler import ProfileData

    totals: dict[int, float] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        device = re.fullmatch(r"/device:(?:GPU|TPU):(\d+)", plane.name)
        lines = [line for line in plane.lines if device and re.match(r"Stream #|XLA Ops$", line.name or "")]
        events = [event for line in lines for event in line.events if not CONTROL.search(event.name)]
        if device and events:
            totals[int(device[1])] = sum(event.duration_ns for event in events)
    return totals


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name.split(".")[0])
def test_device_time_equals_that_of_jaxs_own_reader(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax.profiler", reason="JAX is not installed")
    path = unpack(trace, tmp_path)
    assert sum_ours(path) == pytest.approx(sum_jax(path), rel=1e-3)


def test_device_time_of_a_tpu_equals_that_of_jaxs_own_reader(tmp_path: Path) -> None:
    pytest.importorskip("jax.profiler", reason="JAX is not installed")
    trace, now = tpu_trace(), 10.0
    for _ in range(200):
        trace.event(TPU, "XLA Ops", "%while.1 = (s32[]{:T(128)}) while(%t), body=%body", now, 9_831.9)
        for name, took in (("copy-start", 310.31), ("copy-done", 7_700.77), ("add", 1_820.82)):
            trace.event(TPU, "XLA Ops", f"%{name}.1 = f32[8]{{0:T(256)}} {name}(%p)", now, took)
            now += took
        trace.event(TPU, "Async XLA Ops", "%copy-start.1 = (f32[8]) copy-start(%p)", now - 5_000, 40_000)
    path = trace.write(tmp_path)
    assert sum_ours(path) == pytest.approx(sum_jax(path), rel=1e-3)


@pytest.mark.parametrize(("launches", "thunks"), [((1, 2, 3), 3), ((1, 3, 2), 2), (None, 2)])
def test_kernels_are_one_thunk_if_nothing_was_launched_between_them(
    tmp_path: Path, launches: tuple[int, ...] | None, thunks: int
) -> None:
    """Without launches, kernels next to each other on their stream are."""
    trace = TraceBuilder().hlo(7, hlo_proto(TRAINING))
    for number, (name, stream) in enumerate([("dot.1", 14), ("add.1", 15), ("dot.1", 14)]):
        known: dict[str, int | str] = {"hlo_op": name, "program_id": 7, "run_id": 1}
        known |= {"correlation_id": launches[number]} if launches else {}
        trace.event("/device:GPU:0", f"Stream #{stream}(Compute)", name, 100 * number, 10, **known)
    ops = read_raw(trace.write(tmp_path)).tables["ops"]
    assert ops["instruction"].to_list() == ["dot.1", "add.1", "dot.1"]
    assert ops["thunk"].n_unique() == thunks
