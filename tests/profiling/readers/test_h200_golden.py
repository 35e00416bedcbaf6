"""Traces of today's programs on an H200: kernels of CUDA graphs have the instructions that they have without graphs."""

from pathlib import Path

import polars as pl
import pytest

from nightjar_profiling.analyses.roofline import count_runs as runs_of_thunks
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.raw import Raw
from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.profiling.readers.xplane.test_xplane_device import unpack

GOLDEN = Path(__file__).parent / "golden" / "h200"
PAIRED = ("gpt_tiny", "moe_tiny", "diffusion_tiny", "loops")


def count_runs(raw: Raw) -> dict[str, int]:
    """How often each instruction of a program ran: kernels next to each other of one instruction are one run."""
    ops = raw.tables["ops"].filter(pl.col("program_id").is_not_null()).sort("start_ns")
    runs = ops.filter(pl.struct("execution", "instruction").rle_id().is_first_distinct())
    return dict(runs.group_by("instruction").len().iter_rows())


@pytest.mark.parametrize("name", PAIRED)
def test_each_instruction_runs_as_often_in_graphs_as_without(tmp_path: Path, name: str) -> None:
    with_graphs, without = (
        read_raw(unpack(GOLDEN / f"{one}.xplane.pb.xz", tmp_path)) for one in (name, f"{name}-no-graphs")
    )
    for raw in (with_graphs, without):  # each turn of a loop is a run, also alone on its stream
        ops = raw.tables["ops"].filter(pl.col("program_id").is_not_null())
        assert dict(ops.group_by("instruction").agg(runs_of_thunks()).iter_rows()) == count_runs(raw)
    assert with_graphs.warnings == without.warnings == ()
    nodes = with_graphs.tables["ops"].filter(pl.col("graph_node").is_not_null())
    assert nodes.height > 0
    counts = count_runs(without)
    # In a graph XLA copies each layer's weights asynchronously, by an instruction of another name.
    renamed = {f"loop_dynamic_slice_fusion.{n}": start for n, start in ((2, "fusion-start"), (3, "fusion-start.1"))}
    if name == "loops":
        counts = {renamed.get(instruction, instruction): count for instruction, count in counts.items()}
    assert count_runs(with_graphs) == counts


def sum_flops(tables: Tables, target: str) -> list[float | None]:
    ran = tables.ops.select("program_id", instruction="instruction").unique()
    calls = tables.instructions.filter(opcode="custom-call").rename({"name": "instruction"})
    chosen = calls.join(ran, ["program_id", "instruction"]).filter(pl.col("instruction").str.contains(target))
    return chosen.sort("instruction")["flops"].to_list()


def test_calls_of_cudnn_have_their_operations(tmp_path: Path) -> None:
    tables = make_tables(read_raw(unpack(GOLDEN / "gpt3_126m.xplane.pb.xz", tmp_path)))
    product = 2 * 32 * 12 * 2048 * 2048 * 64 / 2  # 32 examples, 12 heads of 64, 2,048 positions under a causal mask
    assert sum_flops(tables, "attention_bwd") == [5 * product]
    assert sum_flops(tables, "attention_fwd") == [2 * product, 2 * product]
    tables = make_tables(read_raw(unpack(GOLDEN / "diffusion_tiny.xplane.pb.xz", tmp_path)))
    convolutions = sum_flops(tables, "conv")
    assert len(convolutions) == 44
    assert None not in convolutions


def test_two_loops_of_equal_kernels_are_told_apart_by_what_launched_them(tmp_path: Path) -> None:
    tables = make_tables(read_raw(unpack(GOLDEN / "loops.xplane.pb.xz", tmp_path)))
    bodies = tables.instructions.select("program_id", "computation", instruction="name")
    ops = tables.ops.filter(pl.col("graph_node").is_not_null()).join(bodies, ["program_id", "instruction"])
    kernels = ops.group_by("computation").agg(pl.col("kernel").sort(), pl.len()).sort("computation")
    looping = kernels.filter(len=60)  # five layers of four kernels, three steps
    first, second = looping["kernel"].to_list()
    assert first == second
