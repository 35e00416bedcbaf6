"""How fast is each collective, and how long does it wait for the slowest rank?

In: the ops of all ranks and the programs. Out: the table `collectives`, one row per run on a device; and its summary by
kind and size. Kernels that one thunk launched are one run. `wait_ns` needs no common clock: a collective ends on all
ranks at about the same time, so that the rank for which it was shortest came last, and what it took longer on the
others was waiting for that rank. It is null where a single rank was traced, and where an instruction runs in several
groups side by side of which the trace does not tell the devices.

Source: NVIDIA/nccl-tests:doc/PERFORMANCE.md; NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nightjar_profiling.analyses.communication.collective_matching import RUN, TOGETHER, number_runs
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, make_table
from nightjar_profiling.hlo.collective_kinds import Collective, find_collectives
from nightjar_profiling.hlo.hlo import Program

INSTRUCTION = ["program_id", "instruction"]


def make_collectives(
    ops: pl.DataFrame, programs: Mapping[int, Program], groups: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The table `collectives`.

    Args:
        ops: of all ranks.
        programs: by program id; ops of others cannot be told to be collectives.
        groups: its table, where it is made already.
    """
    found = _find_all(programs)
    known = [
        {
            "program_id": number,
            "instruction": name,
            "kind": one.kind,
            "message_bytes": one.message_bytes,
            "group_size": one.group_size,
            "channel_id": one.channel_id,
            "size_factor": one.size_factor,
            "bus_factor": one.bus_factor,
        }
        for number, collectives in found.items()
        for name, one in collectives.items()
    ]
    if not known:
        return make_table("collectives", ())
    factors = {"size_factor": pl.Float64, "bus_factor": pl.Float64}
    names = ["program_id", "instruction", "kind", "message_bytes", "group_size", "channel_id"]
    schema = {name: SCHEMAS["collectives"][name] for name in names} | factors
    described = pl.DataFrame(known, schema=schema)
    runs = (
        ops.drop("bytes", "kind")
        .with_row_index("row")
        .filter(pl.col("instruction").is_in(described["instruction"].implode()))  # a join of all ops takes longer
        .join(described, on=INSTRUCTION, how="inner")
        .with_columns(run=pl.coalesce(pl.col("thunk").cast(pl.Int64), -1 - pl.col("row").cast(pl.Int64)))
        .group_by([*RUN, "run"], maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            duration_ns=(pl.col("start_ns") + pl.col("duration_ns")).max() - pl.col("start_ns").min(),
            **{name: pl.col(name).first() for name in ("kind", *names[3:], *factors)},
        )
        .sort("rank", "device", "start_ns")
    )
    groups = _tabulate_groups(found) if groups is None else groups
    return with_waits(_with_bandwidths(runs), groups).select(list(SCHEMAS["collectives"]))


def make_groups(programs: Mapping[int, Program]) -> pl.DataFrame:
    """The table `groups`, of the instructions that communicate in several."""
    return _tabulate_groups(_find_all(programs))


def _find_all(programs: Mapping[int, Program]) -> dict[int, dict[str, Collective]]:
    return {number: find_collectives(program) for number, program in programs.items()}


def _tabulate_groups(found: Mapping[int, Mapping[str, Collective]]) -> pl.DataFrame:
    rows = (
        {"program_id": number, "instruction": name, "group": group, "device_id": device}
        for number, collectives in found.items()
        for name, one in collectives.items()
        for group, devices in enumerate(one.groups)
        for device in devices
    )
    return make_table("groups", rows)


def find_groups(runs: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Fills `group`: the devices of a program, by rank and number, are those of its groups, by id.

    JAX counts devices process by process, so that both are in one order. Where more or fewer devices ran than the
    groups have, as in the capture of one rank of many, it stays null.
    """
    place = pl.int_range(pl.len()).over("program_id")
    ran = runs.select("program_id", "rank", "device").unique().sort("program_id", "rank", "device")
    ids = groups.select("program_id", "device_id").unique().sort("program_id", "device_id")
    both = ran.with_columns(place=place, n=pl.len().over("program_id")).join(
        ids.with_columns(place=place, n=pl.len().over("program_id")), on=["program_id", "place", "n"]
    )
    known = both.join(groups, on=["program_id", "device_id"]).select(*INSTRUCTION, "rank", "device", "group")
    return runs.drop("group", strict=False).join(
        known, on=[*INSTRUCTION, "rank", "device"], how="left", maintain_order="left"
    )


def _with_bandwidths(runs: pl.DataFrame) -> pl.DataFrame:
    """Bytes by nanoseconds are GB/s (10^9 bytes)."""
    took = pl.when(pl.col("duration_ns") > 0).then("duration_ns")
    algorithm = pl.col("size_factor") * pl.col("message_bytes") / took
    return runs.with_columns(algbw_gb_per_s=algorithm, busbw_gb_per_s=algorithm * pl.col("bus_factor"))


def with_waits(runs: pl.DataFrame, groups: pl.DataFrame | None = None) -> pl.DataFrame:
    """Fills `group` and `wait_ns`; both null where a collective was traced on one device, or in groups not known."""
    runs = find_groups(runs, make_table("groups", ()) if groups is None else groups)
    took = pl.col("duration_ns")
    wait = pl.when("shared").then(took - took.min().over(TOGETHER))
    return number_runs(runs).with_columns(wait_ns=wait.cast(pl.Int64)).drop("occurrence", "shared")


def summarise_collectives(tables: Tables) -> pl.DataFrame:
    """Collectives by kind, message size and group.

    Returns:
        Columns: `kind`, `message_bytes`, `group_size`, `count` (collectives, each once however many devices ran it),
        `duration_ns`, `hidden_ns`, `exposed_ns` (sums over devices), `wait_ns` (null: one device), `busbw_gb_per_s`
        and `busbw_error_gb_per_s`: mean over the collectives, and its standard error, of the bandwidth on the device
        that came last, whose time holds no waiting. Largest exposed time first.
    """
    size = ["kind", "message_bytes", "group_size"]
    runs = number_runs(tables.collectives)
    hidden = tables.ops.filter(pl.col("hidden_ns").is_not_null()).group_by(INSTRUCTION).agg(pl.col("hidden_ns").sum())
    kinds = runs.select(*INSTRUCTION, *size).unique()
    hidden_of = kinds.join(hidden, on=INSTRUCTION, how="left", nulls_equal=True)
    fastest = runs.group_by([*size, *TOGETHER]).agg(
        pl.col("busbw_gb_per_s").max(), pl.col("duration_ns", "wait_ns").sum()
    )
    single = runs["wait_ns"].null_count() == runs.height
    return (
        fastest.group_by(size)
        .agg(
            count=pl.len().cast(pl.Int64),
            duration_ns=pl.col("duration_ns").sum(),
            wait_ns=pl.lit(None, pl.Int64) if single else pl.col("wait_ns").sum(),
            busbw_error_gb_per_s=pl.col("busbw_gb_per_s").std() / pl.len().sqrt(),
            busbw_gb_per_s=pl.col("busbw_gb_per_s").mean(),
        )
        .join(hidden_of.group_by(size).agg(pl.col("hidden_ns").sum()), on=size, how="left", nulls_equal=True)
        .with_columns(exposed_ns=pl.col("duration_ns") - pl.col("hidden_ns"))
        .select(
            *size,
            "count",
            "duration_ns",
            "hidden_ns",
            "exposed_ns",
            "wait_ns",
            "busbw_gb_per_s",
            "busbw_error_gb_per_s",
        )
        .sort("exposed_ns", "kind", "message_bytes", descending=[True, False, False])
    )
