"""Two real archives, against what nsys-jax itself makes of them."""

from __future__ import annotations

import zipfile

import polars as pl
import pytest

from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys_jax.nsys_jax import read_raw
from tests.places import SHARED_DATA

DATA = SHARED_DATA / "nsys-jax"
PROCESSES = [0, 1]
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there: NIGHTJAR_TEST_DATA names its folder")


@pytest.mark.parametrize("process", PROCESSES)
def test_every_thunk_of_a_real_archive_has_the_time_that_nsys_jax_gives_it(process: int) -> None:
    raw = read_raw(DATA / f"pax_fsdp4_4proc_proc{process}.zip")
    theirs = pl.read_parquet(DATA / f"golden-proc{process}" / "frames" / "thunk.parquet")
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
    modules = pl.read_parquet(DATA / f"golden-proc{process}" / "frames" / "module.parquet")
    spans = (1e6 * modules["ProjDurMs"]).round().cast(pl.Int64).sort()
    assert raw.tables["executions"]["duration_ns"].sort().equals(spans, check_names=False)


@pytest.mark.parametrize("process", PROCESSES)
def test_every_compile_range_of_a_real_archive_is_that_of_nsys_jax(process: int) -> None:
    ours = read_raw(DATA / f"pax_fsdp4_4proc_proc{process}.zip").tables["compile"]
    theirs = pl.read_parquet(DATA / f"golden-proc{process}" / "frames" / "compile.parquet").select(
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
def test_a_real_archive_becomes_tables_in_which_no_time_is_lost() -> None:
    path = DATA / "pax_fsdp4_4proc_proc0.zip"
    tables = make_tables(read_raw(path))
    with zipfile.ZipFile(path) as file:
        trace = pl.read_parquet(file.read("nvtx_gpu_proj_trace/trace.parquet"))
    thunks = trace.filter(pl.col("Name").str.starts_with("TSL:Thunk:"))
    parents = thunks["ParentId"].unique()
    assert tables.device_time_ns == thunks.filter(~pl.col("RangeId").is_in(parents))["Projected Duration"].sum()
    timed = tables.ops.filter(pl.col("program_id") >= 0)["duration_ns"].sum()
    attributed = tables.ops.join(tables.attribution, on=["program_id", "instruction"]).filter(pl.col("how") != "none")
    assert float((attributed["duration_ns"] * attributed["weight"]).sum()) / int(timed) > 0.97
