"""Chrome traces: of PyTorch with and without a GPU and stacks, of JAX, of any program."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from nightjar_profiling import load
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.chrome.chrome import read_raw
from nightjar_profiling.readers.chrome.chrome_events import Event, collect_events, load_json
from nightjar_profiling.readers.chrome.chrome_nesting import cut_pieces
from tests.profiling.conftest import Run

Row = dict[str, Any]
PYTORCH = {"schemaVersion": 1}


def lasting(name: str, start_us: float, duration_us: float, category: str = "", tid: int = 1, **args: Any) -> Row:
    row = {"ph": "X", "pid": 1, "tid": tid, "name": name, "cat": category, "ts": start_us, "dur": duration_us}
    return {**row, "args": args}


def write(path: Path, rows: Sequence[Row], **facts: Any) -> Path:
    text = json.dumps({"traceEvents": list(rows), **facts})
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def training_on_a_gpu() -> list[Row]:
    rows = []
    for step in range(3):
        at = 1000 * step
        launch = {"correlation": 10 * step + 1}
        shape = {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
        gpu = {"device": 0, "stream": 7, "est. achieved occupancy %": 50}
        rows += [
            lasting(f"ProfilerStep#{step}", at, 900, "user_annotation"),
            lasting("train.py(12): loss", at + 10, 400, "python_function"),
            lasting("torch/nn/functional.py(2): linear", at + 20, 300, "python_function"),
            lasting("aten::mm", at + 30, 100, "cpu_op"),
            lasting("cudaLaunchKernel", at + 40, 10, "cuda_runtime", **launch),
            lasting("ampere_bf16_s16816gemm_tn", at + 100, 200 + step, "kernel", tid=7, **launch, **gpu, **shape),
            lasting("Memcpy HtoD", at + 400, 50, "gpu_memcpy", tid=7, bytes=64, correlation=10 * step + 2, **gpu),
        ]
    return rows


def test_kernels_of_pytorch_have_their_configuration_and_the_function_that_launched_them(tmp_path: Path) -> None:
    raw = read_raw(write(tmp_path / "a.json", training_on_a_gpu(), **PYTORCH))
    ops = raw.tables["ops"]
    assert ops["duration_ns"].sum() == (200 + 201 + 202 + 3 * 50) * 1000
    assert set(ops["kind"]) == {"kernel", "memcpy"}
    kernel = raw.tables["kernels"].row(0, named=True)
    assert (kernel["launches"], kernel["grid"], kernel["registers"]) == (3, "4,1,1", 32)
    assert (kernel["occupancy"], kernel["tensor_cores"]) == (0.5, True)
    stacks = raw.tables["attribution"].join(raw.tables["frames"], on="frame_id", how="left")
    files = dict(stacks.select("instruction", "file").iter_rows())
    assert files == {"ampere_bf16_s16816gemm_tn": "site-packages/torch/nn/functional.py", "Memcpy HtoD": None}
    assert raw.foreign


def test_steps_make_the_executions_that_diff_compares(tmp_path: Path, run_command: Run) -> None:
    path = write(tmp_path / "a.json", training_on_a_gpu(), **PYTORCH)
    executions = load(path).executions.collect()
    assert executions["execution"].to_list() == [0, 1, 2]
    for name in "ab":
        assert run_command("report", path, "--out", name).returncode == 0
    compared = run_command("diff", "a", "b", "--json")
    assert compared.returncode == 0, compared.stderr
    difference = json.loads(compared.stdout)
    assert difference["executions"] == [3, 3]
    assert difference["total"]["delta_ns"] == 0


def test_ops_of_the_host_count_with_the_time_that_no_op_inside_takes(tmp_path: Path) -> None:
    rows = [
        lasting("aten::linear", 0, 100, "cpu_op"),
        lasting("aten::addmm", 10, 60, "cpu_op"),
        lasting("aten::relu", 120, 30, "cpu_op"),
    ]
    ops = read_raw(write(tmp_path / "a.json.gz", rows, **PYTORCH)).tables["ops"]
    times = dict(ops.group_by("instruction").agg(pl.col("duration_ns").sum()).iter_rows())
    assert times == {"aten::linear": 40_000, "aten::addmm": 60_000, "aten::relu": 30_000}


def test_an_op_of_autograd_belongs_to_the_function_of_its_forward_op(tmp_path: Path) -> None:
    backward = "autograd::engine::evaluate_function: MmBackward0"
    rows = [
        lasting("model.py(7): forward", 0, 50, "python_function"),
        lasting("aten::mm", 10, 30, "cpu_op", **{"Sequence number": 5, "Fwd thread id": 0}),
        lasting(backward, 100, 40, "cpu_op", tid=2, **{"Sequence number": 5, "Fwd thread id": 1}),
        lasting("aten::mm", 110, 20, "cpu_op", tid=2),
    ]
    tables = read_raw(write(tmp_path / "a.json", rows, **PYTORCH)).tables
    assert set(tables["attribution"]["frame_id"]) == {1}
    assert dict(tables["attribution"].select("instruction", "how").iter_rows())[backward] == "numbered"


def test_without_marked_steps_those_of_the_optimizer_count(tmp_path: Path) -> None:
    rows = [lasting("aten::mm", 100 * n, 50, "cpu_op") for n in range(3)]
    rows += [lasting("Optimizer.step#Adam.step", 100 * n + 60, 20, "user_annotation") for n in range(3)]
    capture = load(write(tmp_path / "a.json", rows, **PYTORCH))
    assert capture.executions.collect()["execution"].to_list() == [0, 1, 2]


def test_thunks_of_jax_have_program_and_execution(tmp_path: Path) -> None:
    def thunk(run: str, start: float) -> Row:
        return lasting("dot.1", start, 5, hlo_op="dot.1", hlo_module="jit_f", run_id=run, device_ordinal="0")

    capture = load(write(tmp_path / "trace.json.gz", [thunk("-7", 0), thunk("-8", 10), lasting("$python", 0, 50)]))
    assert capture.programs.collect()["name"].to_list() == ["jit_f"]
    assert capture.executions.collect().height == 2
    assert capture.ops.collect()["duration_ns"].sum() == 10_000


def test_any_other_trace_shows_its_lanes(tmp_path: Path) -> None:
    begin = {"ph": "B", "pid": "p", "tid": "t", "name": "work", "ts": 0}
    rows = [begin, {**begin, "ph": "E", "ts": 7}, {"ph": "C", "name": "counter"}, {}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    ops = read_raw(path).tables["ops"]
    assert ops.select("instruction", "duration_ns").rows() == [("work", 7000)]


@pytest.mark.parametrize("ending", ["", ",", ",\n ", "]"])
def test_a_list_of_events_may_lack_its_end(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"ph": "X", "name": "work", "ts": 0, "dur": 5}' + ending)
    assert read_raw(path).tables["ops"]["duration_ns"].to_list() == [5000]


def test_times_may_be_text(tmp_path: Path) -> None:
    rows = [lasting("a", 0, 0) | {"ts": "10", "dur": "2.5"}]
    rows += [{"ph": "B", "pid": 1, "tid": 2, "name": "b", "ts": "3"}, {"ph": "E", "pid": 1, "tid": 2, "ts": 4}]
    ops = read_raw(write(tmp_path / "a.json", rows)).tables["ops"]
    assert ops.select("instruction", "start_ns", "duration_ns").rows() == [("b", 3000, 1000), ("a", 10_000, 2500)]


def test_a_page_is_titled_by_its_trace(tmp_path: Path, run_command: Run) -> None:
    done = run_command("report", write(tmp_path / "mine.json", [lasting("a", 0, 5)]), "--out", "capture")
    assert done.returncode == 0, done.stderr
    assert "<h1>mine.json</h1>" in (tmp_path / "capture" / "report.html").read_text(encoding="utf-8")


def test_a_trace_in_which_nothing_ends_is_named(tmp_path: Path, run_command: Run) -> None:
    rows = [{"ph": "B", "pid": 1, "tid": 1, "name": "begun", "ts": 1}]
    done = run_command("report", write(tmp_path / "begun.json", rows), "--out", "capture")
    assert done.returncode == 4
    assert "no event that lasts: a complete one (X), or a begin (B) with its end (E)" in done.stderr
    assert not (tmp_path / "capture" / "report.html").exists()


def test_gzip_that_explodes_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (80 << 20), mtime=0))
    with pytest.raises(InputError, match="holds more than 100 times its size"):
        collect_events(path, load_json(path))


@pytest.mark.parametrize("nested", [[(0, 10), (2, 5), (3, 4), (6, 12)], [(0, 5), (5, 9), (5, 6)], [(0, 0), (0, 3)]])
def test_pieces_of_a_lane_never_overlap_and_cover_it(nested: list[tuple[int, int]]) -> None:
    events = [
        Event(lane=("", ""), name="", category="", start_ns=start, duration_ns=end - start, args={})
        for start, end in nested
    ]
    covered = [moment for _, start, end in cut_pieces(events) for moment in range(start, end)]
    assert len(covered) == len(set(covered))
    assert set(covered) <= {moment for start, end in nested for moment in range(start, end)}
    assert set(covered) >= set(range(nested[0][0], nested[0][1]))


@pytest.mark.parametrize(
    "row",
    [
        {"ph": "X", "name": "a"},
        {"ph": "X", "ts": 1e30, "dur": 1, "cat": "kernel"},
        lasting("a", 1, 1, "kernel", grid=5),
        lasting("a", 1, 1, "kernel", device=10**30),
        lasting("\ud800", 1, 1, "kernel"),
        {
            **lasting("autograd::engine::evaluate_function: a", 1, 1, "cpu_op"),
            "args": {"Sequence number": [1]},
        },
        lasting("a", 1, 1, "kernel", bytes=10**30),
    ],
    ids=["no-time", "far", "grid", "device", "surrogate", "sequence", "bytes"],
)
def test_an_event_that_no_profiler_writes_is_named_as_the_files_fault(tmp_path: Path, row: Row) -> None:
    with pytest.raises(InputError, match=r"a\.json: not a valid list of trace events"):
        read_raw(write(tmp_path / "a.json", [row]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "JSON with the keys 'a': expected trace events"),
        ('{"traceEvents": [', "not valid JSON"),
        ('[{"ph": "X", "ts": 1, "dur": 2}, {"ph": "X", "ts": 3, "du', "not valid JSON"),
        ('{"nodes": [], "samples": [], "timeDeltas": []}', "a CPU profile of V8"),
        ('{"schema": "1.1", "pid": 1, "start_ts": 0, "nodes": []}', "an execution trace of PyTorch"),
        ('{"shared": {}, "profiles": []}', "a profile of speedscope"),
        ('[{"ph": "X", "ts": "early"}]', "not a valid list of trace events"),
        ("[1]", None),
    ],
)
def test_json_that_is_no_trace_is_named(text: str, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    if message is None:
        assert read_raw(path).tables["ops"].is_empty()
    else:
        with pytest.raises(InputError, match=message.replace("'", ".")):
            read_raw(path)
