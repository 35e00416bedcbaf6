"""Are the numbers of two real archives those that nsys-jax itself computes from them?"""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

from nightjar_profiling.analyses.communication.collectives import make_collectives
from nightjar_profiling.analyses.communication.overlap import fill_hidden
from nightjar_profiling.analyses.compile_time import account_compile_time, summarise_compile
from nightjar_profiling.hlo.collective_kinds import find_collectives
from nightjar_profiling.hlo.hlo_dump import LazyPrograms
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys_jax.nsys_jax import read_raw
from nightjar_profiling.readers.raw import Raw
from tests.places import SHARED_DATA

DATA = SHARED_DATA / "nsys-jax"
pytestmark = [
    pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there: NIGHTJAR_TEST_DATA names its folder"),
    pytest.mark.parametrize("process", [0, 1]),
]


@cache
def read(process: int) -> tuple[Raw, pl.DataFrame, pl.DataFrame]:
    """An archive, its collectives, and its ops with hidden time."""
    raw = read_raw(DATA / f"pax_fsdp4_4proc_proc{process}.zip")
    assert isinstance(raw.programs, LazyPrograms)
    collectives = make_collectives(raw.tables["ops"], raw.programs.communication())
    return raw, collectives, fill_hidden(raw.tables["ops"], collectives)


def golden(process: int, name: str) -> pl.DataFrame:
    return pl.read_parquet(DATA / f"golden-proc{process}" / f"{name}.parquet")


def ns(column: str) -> pl.Expr:
    return (1e6 * pl.col(column)).round().cast(pl.Int64)


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


def test_the_communicating_part_of_a_program_says_what_the_whole_says(process: int) -> None:
    programs = read(process)[0].programs
    assert isinstance(programs, LazyPrograms)
    parts = programs.communication()
    assert {n: find_collectives(parts[n]) for n in parts} == {n: find_collectives(programs[n]) for n in programs}
