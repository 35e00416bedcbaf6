"""Nodes of CUDA graphs find their instructions by name, number and place, and by nothing else."""

from pathlib import Path

import polars as pl
import pytest

from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.xplane.xplane import read_raw
from nightjar_profiling.readers.xplane.xplane_graphs import _check_numbers
from tests.profiling.builders import Hlo, TraceBuilder, hlo_proto
from tests.profiling.graphs import LAYER, NODES, STEP, TRUTH

GPU = "/device:GPU:0"
STREAM = "Stream #14(Compute)"


def graph(
    trace: TraceBuilder, nodes: tuple[str, ...], launch: int, *, first: int = 0, numbers: tuple[int, ...] = ()
) -> TraceBuilder:
    """A launch of a graph: each node takes 10 ns; they are numbered in order, or as given."""
    for number, name in enumerate(nodes):
        node = (5 << 32) + (numbers[number] if numbers else first + number)
        known: dict[str, int | str] = {"hlo_op": "command_buffer_1", "program_id": 7, "correlation_id": launch}
        known |= {"cuda_graph_id": 5, "cuda_graph_node_id": node}
        trace.event(GPU, STREAM, name, launch * 1000 + number * 10, 10, **known)
    return trace


def ways(raw_path: Path) -> dict[str, str]:
    tables = make_tables(read_raw(raw_path))
    return dict(tables.attribution.select("instruction", "how").iter_rows())


def test_a_graph_is_attributed_and_its_time_kept(tmp_path: Path) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(STEP, scheduled=True))
    for launch in (1, 2, 3):
        graph(trace, NODES, launch)
    raw = read_raw(trace.write(tmp_path))
    ops = raw.tables["ops"].sort("start_ns")
    assert ops["instruction"].to_list() == TRUTH * 3
    assert int(ops["duration_ns"].sum()) == 240
    assert raw.warnings == ()


def test_the_numbers_of_nodes_confirm_what_names_and_order_say(tmp_path: Path) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(STEP, scheduled=True))
    # Products are child graphs: each leaves out one number, and its nodes are counted after all others.
    path = graph(trace, NODES, 1, numbers=(0, 6, 7, 2, 8, 9, 4, 5)).write(tmp_path)
    assert ways(path) == {**dict.fromkeys(LAYER, "numbered"), "mul.1": "called"}
    other = TraceBuilder().hlo(7, hlo_proto(STEP, scheduled=True))
    path = graph(other, NODES, 1, first=3).write(tmp_path, "shifted.xplane.pb")
    assert set(ways(path).values()) == {"placed", "called"}


def test_a_launch_with_different_nodes_is_aligned_again_with_a_warning(tmp_path: Path) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(STEP, scheduled=True))
    graph(graph(trace, NODES, 1), ("add_1", "nvjet_other", "add_1", "nvjet_b", "mul_1", "memcpy32_post"), 2)
    raw = read_raw(trace.write(tmp_path))
    assert raw.tables["ops"].sort("start_ns")["instruction"].to_list()[8:] == list(LAYER)
    assert [text for text in raw.warnings if "different nodes" in text]


def test_without_a_schedule_nodes_stay_open_and_their_time_is_kept(tmp_path: Path) -> None:
    trace = graph(TraceBuilder().hlo(7, hlo_proto(STEP)), NODES, 1)
    raw = read_raw(trace.write(tmp_path))
    assert raw.tables["ops"].select(pl.col("instruction").unique(), pl.col("duration_ns").sum()).row(0) == (
        *("command_buffer_1", 80),
    )
    (warning,) = raw.warnings
    assert "8 kernels of CUDA graphs (0.000 ms) fit no place in the schedule" in warning


def test_graphs_traced_as_a_whole_are_in_a_warning(tmp_path: Path) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(STEP, scheduled=True))
    known: dict[str, int | str] = {"hlo_op": "command_buffer_1", "program_id": 7, "correlation_id": 1}
    trace.event(GPU, STREAM, "CudaGraphExec:5", 0, 100, **known)
    raw = read_raw(trace.write(tmp_path))
    assert int(raw.tables["ops"]["duration_ns"].sum()) == 100
    (warning,) = raw.warnings
    assert "1 launches of CUDA graphs (0.000 ms) were traced whole" in warning


def test_a_loop_body_is_distinguished_from_the_code_around_it(tmp_path: Path) -> None:
    step = {
        **{name: STEP[name] for name in ("sum", "product")},
        "body": [
            Hlo("parameter.8"),
            Hlo("mul.1", frame=3, operands=("parameter.8",), calls=("product",), opcode="fusion", kind="kLoop"),
        ],
        "condition": [Hlo("parameter.9")],
        "main": [
            Hlo("parameter.0"),
            Hlo("add.1", frame=1, operands=("parameter.0",), calls=("sum",), opcode="fusion", kind="kLoop"),
            Hlo("while.1", operands=("add.1",), calls=("body", "condition")),
            Hlo("copy.1", operands=("while.1",)),
        ],
    }
    trace = TraceBuilder().hlo(7, hlo_proto(step, scheduled=True))
    for number, (name, one) in enumerate([("add_1", 5), ("mul_1", 6), ("mul_1", 6), ("memcpy128", 8)]):
        known: dict[str, int | str] = {"hlo_op": f"command_buffer_{one}", "program_id": 7, "correlation_id": number + 1}
        known |= {"cuda_graph_id": one, "cuda_graph_node_id": one << 32}
        trace.event(GPU, STREAM, name, number * 100, 10, **known)
    ops = read_raw(trace.write(tmp_path)).tables["ops"].sort("start_ns")
    assert ops["instruction"].to_list() == ["add.1", "mul.1", "mul.1", "copy.1"]


@pytest.mark.parametrize(
    ("numbers", "places", "agree"),
    [
        ("0123", [0, 1, 2, 3], "yyyy"),
        ("0342", [0, 1, 1, 2], "yyyy"),  # a child graph of two nodes, numbered after all others
        ("0132", [0, 1, 1, 2], "nnnn"),  # numbered before one of them
        ("0132", [0, 1, 2, 2], "yyyy"),  # two nodes of the last thunk
        ("012", [0, 1, None], "nnn"),
        ("01", [0, 2], "nn"),  # nothing is at place 1
        ("345", [0, 1, 2], "nnn"),
        ("3", [0], "y"),  # alone in its graph, a child graph
        ("04563", [0, 1, 1, 2, 3], "ynnny"),  # two child graphs next to each other might share their numbers
        ("213", [0, 1, 2], "nnn"),  # number 2 is a thunk of its own
    ],
)
def test_numbers_of_nodes_agree_with_their_places(numbers: str, places: list[int | None], agree: str) -> None:
    assert _check_numbers([int(number) for number in numbers], places) == [letter == "y" for letter in agree]
