"""The analyses of two real archives (four A100, one process each) against the numbers that nsys-jax gives for them."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from nightjar_profiling.analyses.communication.collectives import summarise_collectives
from nightjar_profiling.analyses.compile_time import summarise_compile
from nightjar_profiling.analyses.pgle import measure_latencies
from nightjar_profiling.analyses.steps import sum_executions
from nightjar_profiling.analyses.warmup import find_steady_state, keep_steady_state
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys_jax.nsys_jax import read_raw
from tests.places import SHARED_DATA

DATA = SHARED_DATA / "nsys-jax"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="no test data: set NIGHTJAR_TEST_DATA")


@pytest.fixture(scope="module")
def both() -> list[Tables]:
    return [make_tables(read_raw(DATA / f"pax_fsdp4_4proc_proc{process}.zip")) for process in range(2)]


STEP = "pjit__wrapped_step_fn"
TWICE = "jit__psum"  # compiled twice, to the same program: one by their count, two by ours


def golden(process: int, name: str) -> pl.DataFrame:
    return pl.read_parquet(DATA / f"golden-proc{process}" / f"{name}.parquet")


def of_step(frame: pl.DataFrame) -> pl.DataFrame:
    fingerprint = "25fa0b3e673a92036f22550cd7bcb068"
    return frame.filter(pl.col("ProgramId") == fingerprint)


def steady_step(tables: Tables, rows: pl.DataFrame) -> pl.DataFrame:
    """Of rows with a program, those of the training step in its steady state, in order of time."""
    step = tables.programs.filter(pl.col("name") == STEP).select("program_id")
    return keep_steady_state(tables, rows).join(step, on="program_id", how="semi").sort("start_ns")


@pytest.mark.parametrize("process", [0, 1])
def test_sizes_and_bandwidths_of_collectives_equal_the_reference(both: list[Tables], process: int) -> None:
    theirs = of_step(golden(process, "steady_communication")).sort("ProjStartMs")
    ours = steady_step(both[process], both[process].collectives)
    assert ours["kind"].to_list() == theirs["Collective"].to_list()
    assert ours["message_bytes"].to_list() == theirs["MessageSize"].to_list()
    assert ours["group_size"].to_list() == theirs["CollectiveSize"].to_list()
    assert ours["algbw_gb_per_s"].to_list() == pytest.approx(theirs["AlgorithmBandwidthGBPerSec"].to_list(), rel=1e-6)
    assert ours["busbw_gb_per_s"].to_list() == pytest.approx(theirs["BusBandwidthGBPerSec"].to_list(), rel=1e-6)


@pytest.mark.parametrize("process", [0, 1])
def test_hidden_time_equals_the_reference(both: list[Tables], process: int) -> None:
    theirs = of_step(golden(process, "steady_thunk")).sort("ProjStartMs")
    ours = steady_step(both[process], both[process].ops)
    hidden_ns = (theirs.filter("Communication")["ProjDurHiddenMs"] * 1e6).to_list()
    assert ours["hidden_ns"].drop_nulls().to_list() == pytest.approx(hidden_ns, abs=0.5)
    exposed_ns = ours.select(pl.sum("duration_ns") - pl.sum("hidden_ns")).item()
    assert exposed_ns / 1e6 == pytest.approx(theirs["ProjDurMs"].sum(), rel=1e-9)


@pytest.mark.parametrize("process", [0, 1])
def test_only_the_first_run_of_a_recompiled_program_differs_from_the_reference(
    both: list[Tables], process: int
) -> None:
    theirs = golden(process, "steady_module").select("Name", ns=(pl.col("ProjDurMs") * 1e6).round().cast(pl.Int64))
    names = both[process].programs.select("program_id", Name="name")
    runs = sum_executions(both[process]).join(names, on="program_id")
    steady = sum_executions(both[process], steady_state=True).join(names, on="program_id")
    first = runs.filter(Name=TWICE, execution=0).sort("start_ns")["duration_ns"][1]
    more = Counter(theirs.iter_rows()) - Counter(steady.select("Name", "duration_ns").iter_rows())
    assert dict(more) == {(TWICE, first): 1}
    assert steady.height == theirs.height - 1


@pytest.mark.parametrize("process", [0, 1])
def test_latencies_for_the_scheduler_equal_the_reference(both: list[Tables], process: int) -> None:
    full, key = pl.col("ProjDurMs") + pl.col("ProjDurHiddenMs"), ["ProgramId", "Name"]
    chosen = pl.when(pl.col("Communication").first()).then(full.max()).otherwise(full.min())
    theirs = golden(process, "steady_thunk").group_by(key).agg(theirs_us=1000 * chosen)
    programs = both[process].programs.select("program_id", ProgramId="fingerprint", program="name")
    ours = measure_latencies(both[process]).join(programs, on="program_id")
    found = ours.join(theirs, left_on=["ProgramId", "instruction"], right_on=key, how="full", coalesce=True)
    assert found.null_count().sum_horizontal().item() == 0
    differs = found.filter((pl.col("cost_us") - pl.col("theirs_us")).abs() > 1e-6 * pl.col("theirs_us"))
    assert differs.select("program", "instruction").rows() == [(TWICE, "all-reduce-start")] * process
    assert found.height - differs.height == (2582, 2578)[process]


@pytest.mark.parametrize("process", [0, 1])
def test_steady_state_executions_equal_the_reference(both: list[Tables], process: int) -> None:
    theirs = golden(process, "steady_module").filter(pl.col("Name") == STEP)
    found = sum_executions(both[process], steady_state=True).filter(pl.col("n_ops") > 1000)
    assert (found["duration_ns"] / 1e6).to_list() == pytest.approx(theirs["ProjDurMs"].to_list(), rel=1e-9)
    assert find_steady_state(both[process]).height >= found.height > 0


@pytest.mark.parametrize("process", [0, 1])
def test_compile_wall_time_equals_the_reference(both: list[Tables], process: int) -> None:
    theirs = golden(process, "compile_stats").with_columns(
        name=pl.col("__index_level_0__").str.replace(r",?program_id=\d+", "").str.replace(r":?#(module=[^#]*)?#$", "")
    )
    by_name = dict(theirs.group_by("name").agg(pl.col("DurNonChildMs").sum()).iter_rows())
    ours = summarise_compile(both[process])
    assert ours.select(pl.sum("wall_ns") / 1e6).item() == pytest.approx(theirs["DurNonChildMs"].sum(), rel=1e-9)
    largest = {name: ns / 1e6 for name, ns in ours.head(10).select("name", "wall_ns").iter_rows()}
    assert largest == pytest.approx({name: by_name.get(name, by_name.get(f"{name}#")) for name in largest}, rel=1e-9)


def test_the_summary_names_every_size_once(both: list[Tables]) -> None:
    found = summarise_collectives(both[0])
    assert found.select("kind", "message_bytes", "group_size").is_duplicated().sum() == 0
    assert found["duration_ns"].sum() == both[0].collectives["duration_ns"].sum()
    assert found["hidden_ns"].sum() == both[0].ops["hidden_ns"].sum()
