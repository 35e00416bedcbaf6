"""Real traces of an H100, where a step is a CUDA graph, say what the same program says without graphs."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from nightjar_profiling.analyses.categories import summarise_categories
from nightjar_profiling.analyses.gaps import summarise_devices
from nightjar_profiling.analyses.roofline import find_peak, measure_roofline
from nightjar_profiling.analyses.stacks import read_stacks
from nightjar_profiling.analyses.steps import summarise_programs, summarise_steps
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.capture_folder.usercode import user_code_test
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.protos import xplane_pb2
from nightjar_profiling.readers.nsys.nsys_export import read_sqlite
from nightjar_profiling.readers.raw import Raw
from nightjar_profiling.readers.xplane.xplane import read_raw
from nightjar_profiling.report.analyse import find_hot_lines, sum_device_time
from tests.profiling.nsys_sqlite_builder import SqliteBuilder
from tests.profiling.readers.xplane.test_xplane_device import unpack

GOLDEN = Path(__file__).parent / "golden" / "h100"

Open = Callable[[str], tuple[Path, Raw, Tables]]


PAIR = ("gpt_tiny", "gpt_tiny-no-graphs")


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """A trace by name: the file, what was read, the tables; each is read once."""
    known: dict[str, tuple[Path, Raw, Tables]] = {}

    def read(name: str) -> tuple[Path, Raw, Tables]:
        if name not in known:
            path = unpack(GOLDEN / f"{name}.xplane.pb.xz", tmp_path_factory.mktemp(name))
            raw = read_raw(path)
            known[name] = path, raw, make_tables(raw)
        return known[name]

    return read


def device_ps(path: Path) -> list[int]:
    """The durations of all events on the streams of GPUs, in ps, as the protobuf says them."""
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    planes = [plane for plane in space.planes if plane.name.startswith(b"/device:GPU")]
    lines = [line for plane in planes for line in plane.lines if line.name.startswith(b"Stream #")]
    return [event.duration_ps for line in lines for event in line.events]


def shares(tables: Tables) -> dict[str, float]:
    time = sum_device_time(tables)
    return {how: round(time.fraction(ns), 4) for how, ns in sorted(time.by_how.items())}


@pytest.mark.parametrize(
    ("name", "ops", "total_ns"),
    [("gpt_tiny", 594, 1_400_177), ("gpt_tiny-no-graphs", 594, 1_371_714), ("gpt3_126m", 2_170, 467_152_922)],
)
def test_no_nanosecond_of_the_trace_is_lost(h100: Open, name: str, ops: int, total_ns: int) -> None:
    path, raw, tables = h100(name)
    raw_ps = device_ps(path)
    assert (len(raw_ps), sum(ps // 1000 for ps in raw_ps)) == (ops, total_ns)
    assert (tables.ops.height, tables.device_time_ns) == (ops, total_ns)
    assert sum(sum_device_time(tables).by_how.values()) == total_ns
    assert raw.warnings == ()


def test_each_node_of_the_graph_has_the_instruction_that_the_kernel_has_without_graphs(h100: Open) -> None:
    with_graphs, without = (h100(name)[2].ops.filter(pl.col("program_id").is_not_null()) for name in PAIR)
    assert with_graphs["graph_node"].null_count() == 0
    assert without["graph_node"].null_count() == without.height
    assert with_graphs["instruction"].to_list() == without["instruction"].to_list()
    # Of 196 kernels of a step, 109 do not have the name of their instruction.
    renamed = with_graphs["instruction"].str.replace_all(r"\W", "_") != with_graphs["kernel"]
    assert int(renamed.sum()) == 3 * 109


@pytest.mark.parametrize("name", ["moe_tiny", "diffusion_tiny"])
@pytest.mark.slow
def test_sorts_and_graphs_between_kernels_have_the_instructions_they_have_alone(tmp_path: Path, name: str) -> None:
    runs = []
    for one in (name, f"{name}-no-graphs"):
        raw = read_raw(unpack(GOLDEN / f"{one}.xplane.pb.xz", tmp_path))
        assert raw.warnings == ()
        ops = raw.tables["ops"].filter(pl.col("program_id").is_not_null())
        # Autotuning gave one convolution another kernel, which clears first: equal neighbours count once.
        runs.append(ops.filter(pl.struct("execution", "instruction").rle_id().is_first_distinct())["instruction"])
    assert runs[0].to_list() == runs[1].to_list()


def test_graphs_made_before_nsys_began_to_collect_find_the_same_instructions(h100: Open, tmp_path: Path) -> None:
    path, _, tables = h100("gpt_tiny")
    built = SqliteBuilder()
    for (correlation,), ops in tables.ops.drop_nulls("graph_node").group_by("correlation_id", maintain_order=True):
        launch_ns = int(ops["launch_ns"][0])
        built.range("XlaModule:#hlo_module=jit_train_step,program_id=1363#", launch_ns - 90, launch_ns + 90)
        built.range("Thunk:#hlo_op=command_buffer_1#", launch_ns - 80, launch_ns + 80)
        built.call(launch_ns, launch_ns + 10, correlation)
        for kernel, start, duration, node in ops.select("kernel", "start_ns", "duration_ns", "graph_node").iter_rows():
            built.launch(kernel, 0, start, start + duration, node=node, correlation=correlation)
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    (metadata,) = (plane for plane in space.planes if plane.name == b"/host:metadata")
    (program,) = (one for one in metadata.event_metadata.values() if one.name == b"jit_train_step(1363)")
    (tmp_path / "a.dump").mkdir()
    dumped = tmp_path / "a.dump" / "module_1363.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb"
    dumped.write_bytes(next(stat.bytes_value for stat in program.stats if stat.bytes_value))
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    without = h100("gpt_tiny-no-graphs")[2].ops.filter(pl.col("program_id").is_not_null())
    assert raw.tables["ops"]["instruction"].to_list() == without["instruction"].to_list()
    assert raw.warnings == ()
    assert shares(make_tables(raw)) == {"called": 0.1349, "numbered": 0.8629, "user": 0.0022}


def test_the_hot_lines_are_the_same_with_and_without_graphs(h100: Open) -> None:
    found = []
    for name in PAIR:
        tables = h100(name)[2]
        stack_of = read_stacks(tables, user_code_test(()))
        lines = find_hot_lines(sum_device_time(tables), stack_of, lambda *_: None)
        found.append([(Path(one.file).name, one.line) for one in lines[:5]])
    hottest = [
        ("precision.py", 53),
        ("transformer.py", 56),
        ("layers.py", 32),
        ("transformer.py", 57),
        ("layers.py", 33),
    ]
    assert found == [hottest, hottest]


def test_direct_and_inferred_attributions_are_distinguished(h100: Open) -> None:
    # What has no stack are copies between host and device. In the large model library calls lie side by side.
    assert shares(h100("gpt_tiny")[2]) == {"called": 0.1341, "none": 0.0059, "numbered": 0.8578, "user": 0.0022}
    assert shares(h100("gpt_tiny-no-graphs")[2]) == {"called": 0.9913, "none": 0.0061, "user": 0.0025}
    assert shares(h100("gpt3_126m")[2]) == {
        **{"called": 0.528, "none": 0.0, "numbered": 0.2748, "placed": 0.194, "user": 0.0032}
    }


def test_loops_and_the_code_around_them_are_distinguished(h100: Open) -> None:
    ops = h100("gpt3_126m")[2].ops.filter(pl.col("graph_node").is_not_null())
    graphs = ops.with_columns(graph=pl.col("graph_node") // 2**32).join(
        h100("gpt3_126m")[2].instructions.select("program_id", "computation", instruction="name"),
        on=["program_id", "instruction"],
    )
    found = graphs.group_by("graph").agg(
        pl.col("computation").unique().sort(),
        pl.col("correlation_id").n_unique(),
        nodes=pl.col("graph_node").n_unique(),
    )
    forward, backward = "region_0.14", "region_21.65"
    assert sorted(found.rows()) == [  # 12 layers, two steps
        *((5, ["main.85"], 2, 15), (32, [forward], 24, 29), (71, ["main.85"], 2, 25)),
        *((116, [backward], 24, 54), (167, ["main.85"], 2, 47)),
    ]


def test_a_library_call_of_several_kernels_is_one_run_of_its_instruction(h100: Open) -> None:
    rates = measure_roofline(h100("gpt3_126m")[2], find_peak("NVIDIA H100 80GB HBM3"))
    counts = dict(rates.select("instruction", "count").iter_rows())
    assert counts["custom-call.11"] == 24  # a product and the sum over its parts, 12 layers, two steps


def test_nothing_is_much_faster_than_the_device(h100: Open) -> None:
    for name in ("gpt_tiny", "gpt3_126m"):
        rates = measure_roofline(h100(name)[2], find_peak("NVIDIA H100 80GB HBM3")).drop_nulls("roofline_fraction")
        fastest = rates.sort("roofline_fraction").row(-1, named=True)
        # What reads 50 MB or less anew finds it in the second-level cache.
        assert fastest["roofline_fraction"] < 1.3, fastest


def test_executions_and_steps_of_a_gpu_come_from_its_host(h100: Open) -> None:
    _, _, tables = h100("gpt_tiny")
    (program,) = summarise_programs(tables).rows(named=True)
    assert (program["name"], program["executions"], program["n_ops"]) == ("jit_train_step", 3, 196)
    assert tables.executions["duration_ns"].to_list() == [409_834, 411_881, 411_242]
    # The annotation of the first step began before the trace: a capture of today records it, too.
    assert summarise_steps(tables).select("step", "n_ops").rows() == [(11, 198), (12, 198)]


def test_ranges_of_the_host_know_what_they_launched(h100: Open) -> None:
    ranges = h100("gpt_tiny")[2].ranges
    steps = ranges.filter(pl.col("name") == "train").sort("start_ns")
    # One graph each; its ops are those of the step's execution.
    assert steps.select("device_start_ns", "device_duration_ns", "n_ops").rows() == [
        *((26_356_448, 411_881, 1), (29_384_071, 411_242, 1))
    ]
    assert ranges.filter(pl.col("name") == "shard_args")["n_ops"].null_count() == 3


def test_the_overview_of_the_device_is_that_of_the_trace(h100: Open) -> None:
    (device,) = summarise_devices(h100("gpt3_126m")[2]).rows(named=True)
    assert (device["span_ns"], device["busy_ns"]) == (471_730_950, 466_909_394)
    assert device["launch_latency_ns_max"] == 241_924_347  # the host is a step ahead
    assert dict(summarise_categories(h100("gpt3_126m")[2]).select("category", "device_ns").iter_rows()) == {
        **{"fusion": 243_644_338, "matrix product": 122_801_506, "custom call": 65_671_827, "memory copy": 20_802_089},
        "reduction": 14_233_162,  # of kernels named input_reduce_fusion alone
    }
