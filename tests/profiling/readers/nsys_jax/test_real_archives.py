"""Two real archives (four A100, one process each) against the numbers that nsys-jax itself gives for them."""

import zipfile
from collections import Counter
from functools import cache

import polars as pl
import pytest

from nightjar_profiling.analyses.communication.collectives import make_collectives
from nightjar_profiling.analyses.communication.overlap import fill_hidden
from nightjar_profiling.analyses.compile_time import account_compile_time, summarise_compile
from nightjar_profiling.analyses.steps import sum_executions
from nightjar_profiling.analyses.warmup import find_steady_state, keep_steady_state
from nightjar_profiling.attribution.apportion import apportion_time
from nightjar_profiling.attribution.attribute import DIRECT
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.hlo.hlo_dump import LazyPrograms
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys_jax.nsys_jax import read_raw
from nightjar_profiling.readers.raw import Raw
from tests.places import SHARED_DATA

DATA = SHARED_DATA / "nsys-jax"
STEP = "pjit__wrapped_step_fn"
TWICE = "jit__psum"  # compiled twice, to the same program: one by their count, two by ours
pytestmark = [
    pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there: NIGHTJAR_TEST_DATA names its folder"),
    pytest.mark.parametrize("process", [0, 1]),
]


@cache
def read(process: int) -> tuple[Raw, pl.DataFrame, pl.DataFrame]:
    raw = read_raw(DATA / f"pax_fsdp4_4proc_proc{process}.zip")
    assert isinstance(raw.programs, LazyPrograms)
    collectives = make_collectives(raw.tables["ops"], raw.programs)
    return raw, collectives, fill_hidden(raw.tables["ops"], collectives)


@cache
def make(process: int) -> Tables:
    return make_tables(read(process)[0])


@pytest.fixture
def tables(process: int) -> Tables:
    return make(process)


def golden(process: int, name: str) -> pl.DataFrame:
    return pl.read_parquet(DATA / f"golden-proc{process}" / f"{name}.parquet")


def ns(column: str) -> pl.Expr:
    return (1e6 * pl.col(column)).round().cast(pl.Int64)


def test_every_thunk_of_a_real_archive_has_the_time_that_nsys_jax_gives_it(process: int) -> None:
    raw = read(process)[0]
    theirs = golden(process, "frames/thunk")
    theirs = theirs.with_columns(
        duration_ns=(1e6 * (pl.col("ProjDurMs") + pl.col("ProjDurHiddenMs"))).round().cast(pl.Int64),
        start_ns=(1e6 * pl.col("ProjStartMs")).round().cast(pl.Int64),
    )
    fingerprints = raw.tables["programs"].select("program_id", "fingerprint")
    ours = raw.tables["ops"].join(fingerprints, on="program_id", how="left")
    ours = ours.with_columns(pl.col("fingerprint").replace("", "unknown"))
    keys = ["fingerprint", "instruction", "device", "start_ns", "duration_ns"]
    named = theirs.select(fingerprint="ProgramId", instruction="Name", device="LocalDevice", start_ns="start_ns")
    named = named.with_columns(theirs["duration_ns"], pl.col("device").cast(pl.Int64)).select(keys)
    assert ours["rank"].unique().to_list() == [process]
    assert ours.select(keys).sort(keys).equals(named.sort(keys))
    modules = golden(process, "frames/module")
    spans = (1e6 * modules["ProjDurMs"]).round().cast(pl.Int64).sort()
    assert raw.tables["executions"]["duration_ns"].sort().equals(spans, check_names=False)


def test_every_compile_range_of_a_real_archive_is_that_of_nsys_jax(process: int) -> None:
    ours = read(process)[0].tables["compile"]
    theirs = golden(process, "frames/compile").select(
        range_id=pl.col("RangeId").cast(pl.Int64),
        parent_id=pl.col("ParentId").cast(pl.Int64),
        thread="TID",
        duration_ns=(1e6 * pl.col("DurMs")).round().cast(pl.Int64),
        program="ProgramName",
    )
    # nsys-jax gives the range around all compilations of the autotuner the name of the last program tried in it.
    tunes = ours.filter(pl.col("name") == "XlaAutotunerCompilation")["range_id"].implode()
    checked = theirs.with_columns(pl.when(~pl.col("range_id").is_in(tunes)).then("program"))
    mine = ours.with_columns(pl.when(~pl.col("range_id").is_in(tunes)).then("program"))
    assert mine.select(theirs.columns).sort("range_id").equals(checked.sort("range_id"))


@pytest.mark.slow
def test_a_real_archive_becomes_tables_in_which_no_time_is_lost(tables: Tables, process: int) -> None:
    with zipfile.ZipFile(DATA / f"pax_fsdp4_4proc_proc{process}.zip") as file:
        trace = pl.read_parquet(file.read("nvtx_gpu_proj_trace/trace.parquet"))
    thunks = trace.filter(pl.col("Name").str.starts_with("TSL:Thunk:"))
    parents = thunks["ParentId"].unique()
    assert tables.device_time_ns == thunks.filter(~pl.col("RangeId").is_in(parents))["Projected Duration"].sum()
    steady = keep_steady_state(tables, tables.ops)
    exposed = steady.with_columns(duration_ns=pl.col("duration_ns") - pl.col("hidden_ns").fill_null(0))
    for ops, least in ((steady, 0.93), (exposed, 0.96)):
        chosen = Tables(**{**{name: getattr(tables, name) for name in tables.__slots__}, "ops": ops})
        by_how = dict(apportion_time(chosen, by=()).group_by("how").agg(pl.col("duration_ns").sum()).iter_rows())
        total = sum(by_how.values())
        assert sum(by_how.get(how, 0) for how in DIRECT) > least * total
        assert by_how.get("none", 0) < 1e-4 * total


def test_every_thunk_hides_as_much_communication(process: int) -> None:
    _, _, ops = read(process)
    theirs = golden(process, "frames/thunk").select(
        instruction="Name",
        start_ns=ns("ProjStartMs"),
        hidden_ns=ns("ProjDurHiddenMs"),
        exposed_ns=ns("ProjDurMs"),
        communicates="Communication",
    )
    ours = ops.select(
        "instruction",
        "start_ns",
        pl.col("hidden_ns").fill_null(0),
        exposed_ns=pl.col("duration_ns") - pl.col("hidden_ns").fill_null(0),
        communicates=pl.col("hidden_ns").is_not_null(),
    )
    by = ["start_ns", "instruction"]
    assert ours.sort(by).equals(theirs.sort(by))


def test_every_collective_has_the_same_size_and_bandwidth(process: int) -> None:
    _, collectives, _ = read(process)
    theirs = golden(process, "frames/communication").with_columns(start_ns=ns("ProjStartMs"))
    both = collectives.join(theirs, left_on=["instruction", "start_ns"], right_on=["Name", "start_ns"], validate="1:1")
    assert both.height == collectives.height == theirs.height
    for ours, other in (("kind", "Collective"), ("message_bytes", "MessageSize"), ("group_size", "CollectiveSize")):
        assert both[ours].equals(both[other], check_names=False)
    for ours, other in (("algbw_gb_per_s", "Algorithm"), ("busbw_gb_per_s", "Bus")):
        difference = (both[ours] / both[f"{other}BandwidthGBPerSec"] - 1).abs()
        assert difference.to_numpy().max() < 1e-9


def test_compile_time_is_the_same_in_sum_and_by_range(process: int) -> None:
    raw, collectives, _ = read(process)
    theirs = golden(process, "compile_stats").rename({"__index_level_0__": "name"})
    tables = make_tables(Raw(tables={**raw.tables, "collectives": collectives}, programs={}))
    ours = summarise_compile(tables)
    # nsys-jax leaves the program in the name and so parts a phase into as many rows as programs: they are added here.
    phase = pl.col("name").str.replace_all(r",?(?:module|program_id)=[^,#]*", "").str.replace(r":?#+$", "#")
    theirs = (
        theirs.with_columns(phase.str.replace(r"^([^:#]+)#$", "$1"))
        .group_by("name")
        .agg(their_ns=1e6 * pl.col("DurNonChildMs").sum())
    )
    both = ours.with_columns(pl.col("name").str.replace(r"^([^:#]+)#$", "$1")).join(theirs, on="name", how="full")
    assert both.null_count().sum_horizontal().item() == 0
    assert ((both["wall_ns"] - both["their_ns"]).abs() <= 1e-6 * both["their_ns"].abs() + 1.0).all()
    assert abs(float(both["wall_ns"].sum()) / float(both["their_ns"].sum()) - 1) < 1e-9
    accounted = account_compile_time(tables.compile)
    outermost = int(accounted.filter(pl.col("parent_id").is_null())["duration_ns"].sum())
    assert abs(float(both["wall_ns"].sum()) - outermost) < 1.0


def test_only_the_first_run_of_a_recompiled_program_differs_from_the_reference(tables: Tables, process: int) -> None:
    theirs = golden(process, "steady_module").select("Name", ns=(pl.col("ProjDurMs") * 1e6).round().cast(pl.Int64))
    names = tables.programs.select("program_id", Name="name")
    runs = sum_executions(tables).join(names, on="program_id")
    steady = keep_steady_state(tables, sum_executions(tables)).join(names, on="program_id")
    first = runs.filter(Name=TWICE, execution=0).sort("start_ns")["duration_ns"][1]
    more = Counter(theirs.iter_rows()) - Counter(steady.select("Name", "duration_ns").iter_rows())
    assert dict(more) == {(TWICE, first): 1}
    assert steady.height == theirs.height - 1


def test_steady_state_executions_equal_the_reference(tables: Tables, process: int) -> None:
    theirs = golden(process, "steady_module").filter(pl.col("Name") == STEP)
    found = keep_steady_state(tables, sum_executions(tables)).filter(pl.col("n_ops") > 1000)
    assert (found["duration_ns"] / 1e6).to_list() == pytest.approx(theirs["ProjDurMs"].to_list(), rel=1e-9)
    assert find_steady_state(tables).height >= found.height > 0
