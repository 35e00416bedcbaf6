"""Collectives with their bandwidth and their waiting time, and the devices that the others wait for.

In: the ops of all ranks and the programs. Out: the table `collectives`, one row per run on a device. Kernels that one
thunk launched are one run. `wait_ns` needs no common clock: a collective ends on all ranks at about the same time, so
the rank with the shortest duration came last, and the additional time on the other ranks was spent waiting for it. It
is null if only one rank was traced, and if an instruction runs in several groups at once and the trace does not
identify their devices.

Source: NVIDIA/nccl-tests:doc/PERFORMANCE.md; NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nightjar_profiling.analyses.warmup import keep_steady_state
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, make_table
from nightjar_profiling.hlo.collective_kinds import Collective, find_collectives
from nightjar_profiling.hlo.hlo import Program

INSTRUCTION = ["program_id", "instruction"]


def make_collectives(
    ops: pl.DataFrame, programs: Mapping[int, Program], groups: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The table `collectives`.

    Args:
        programs: by program id; ops of other programs are not recognized as collectives.
        groups: the table `groups`; made from the programs if None.
    """
    collectives = _find_all(programs)
    rows = [
        {
            "program_id": number,
            "instruction": name,
            "kind": collective.kind,
            "message_bytes": collective.message_bytes,
            "group_size": collective.group_size,
            "channel_id": collective.channel_id,
            "size_factor": collective.size_factor,
            "bus_factor": collective.bus_factor,
        }
        for number, by_name in collectives.items()
        for name, collective in by_name.items()
    ]
    if not rows:
        return make_table("collectives", ())
    factors = {"size_factor": pl.Float64, "bus_factor": pl.Float64}
    names = ["program_id", "instruction", "kind", "message_bytes", "group_size", "channel_id"]
    schema = {name: SCHEMAS["collectives"][name] for name in names} | factors
    described = pl.DataFrame(rows, schema=schema)
    runs = (
        ops.drop("bytes", "kind")
        .with_row_index("row")
        .filter(pl.col("instruction").is_in(described["instruction"].implode()))  # faster than a join of all ops
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
    if groups is None:
        groups = _tabulate_groups(collectives)
    return add_waits(_with_bandwidths(runs), groups).select(list(SCHEMAS["collectives"]))


def make_groups(programs: Mapping[int, Program]) -> pl.DataFrame:
    """The table `groups`, of the instructions that communicate in several groups."""
    return _tabulate_groups(_find_all(programs))


def _find_all(programs: Mapping[int, Program]) -> dict[int, dict[str, Collective]]:
    return {number: find_collectives(program) for number, program in programs.items()}


def _tabulate_groups(collectives: Mapping[int, Mapping[str, Collective]]) -> pl.DataFrame:
    rows = (
        {"program_id": number, "instruction": name, "group": group, "device_id": device}
        for number, by_name in collectives.items()
        for name, collective in by_name.items()
        for group, devices in enumerate(collective.groups)
        for device in devices
    )
    return make_table("groups", rows)


def find_groups(runs: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Fills `group`: a program's devices, by rank and number, are the members of its groups, by id.

    JAX numbers devices process by process, so that both are in the same order. If the number of devices that ran is not
    the number in the groups, as in the capture of one rank of many, `group` stays null.
    """
    position = pl.int_range(pl.len()).over("program_id")
    ran = runs.select("program_id", "rank", "device").unique().sort("program_id", "rank", "device")
    ids = groups.select("program_id", "device_id").unique().sort("program_id", "device_id")
    both = ran.with_columns(position=position, n=pl.len().over("program_id")).join(
        ids.with_columns(position=position, n=pl.len().over("program_id")), on=["program_id", "position", "n"]
    )
    matched = both.join(groups, on=["program_id", "device_id"]).select(*INSTRUCTION, "rank", "device", "group")
    return runs.drop("group", strict=False).join(
        matched, on=[*INSTRUCTION, "rank", "device"], how="left", maintain_order="left"
    )


def _with_bandwidths(runs: pl.DataFrame) -> pl.DataFrame:
    """Bytes per nanosecond are GB/s (10^9 bytes)."""
    took = pl.when(pl.col("duration_ns") > 0).then("duration_ns")
    algorithm = pl.col("size_factor") * pl.col("message_bytes") / took
    return runs.with_columns(algbw_gb_per_s=algorithm, busbw_gb_per_s=algorithm * pl.col("bus_factor"))


def add_waits(runs: pl.DataFrame, groups: pl.DataFrame | None = None) -> pl.DataFrame:
    """Fills `group` and `wait_ns`; both are null for a single traced device or unknown groups.

    The n-th run of an instruction in an execution of a program is one collective on all devices of a group. Without a
    known group (pairs of a permute, a trace without HLO, one host of several) no waiting is measured.
    """
    groups = make_table("groups", ()) if groups is None else groups
    several = groups.select(INSTRUCTION).unique().with_columns(several=True)
    runs = find_groups(runs, groups).join(several, on=INSTRUCTION, how="left", maintain_order="left")
    devices, took = pl.len().over(COLLECTIVE_KEY), pl.col("duration_ns")
    one_group = pl.col("group_size").is_null() | (devices <= pl.col("group_size"))
    known = pl.col("several").is_null() | pl.col("group").is_not_null()
    wait = pl.when((devices > 1) & one_group & known).then(took - took.min().over(COLLECTIVE_KEY))
    return _number(runs).with_columns(wait_ns=wait.cast(pl.Int64)).drop("occurrence", "several")


RUN = ["rank", "device", "program_id", "execution", "instruction"]
COLLECTIVE_KEY = ["program_id", "execution", "instruction", "occurrence", "group"]


def number_runs(collectives: pl.DataFrame) -> pl.DataFrame:
    """The rows with `occurrence`, and `shared`: several devices ran the collective, and their waits are known."""
    is_shared = (pl.len().over(COLLECTIVE_KEY) > 1) & pl.col("wait_ns").is_not_null()
    return _number(collectives).with_columns(shared=is_shared)


def _number(collectives: pl.DataFrame) -> pl.DataFrame:
    return collectives.with_columns(occurrence=pl.int_range(pl.len()).over(RUN))


DEVICE = ["rank", "device"]


def find_stragglers(tables: Tables) -> pl.DataFrame:
    """How late each device comes to the collectives; the one that causes the most waiting first.

    A device that is late by chance is last in one collective of n on n devices; a slow one is last in most, in every
    execution. Only the steady state counts, since a long compilation does not make a straggler.

    Returns:
        Columns: `rank`, `device`; `collectives` (in which it took part); `last_fraction` (of those, the fraction in
        which it came last); `late_ns` (median delay after the first device), `late_ns_p90`; `caused_wait_ns` (waiting
        of all others in the collectives in which it was last); `executions`, and `stability`: the fraction of program
        executions in which it caused the most waiting. Empty for a single device.
    """
    steady = keep_steady_state(tables, tables.collectives)
    runs = _measure_delays(tables.collectives if steady.is_empty() else steady)
    per_execution = (
        runs.group_by([*DEVICE, "program_id", "execution"])
        .agg(pl.col("caused_ns").sum())
        .with_columns(most=pl.col("caused_ns").max().over("program_id", "execution"))
        .with_columns(worst=(pl.col("caused_ns") == pl.col("most")) & (pl.col("most") > 0))
    )
    stable = per_execution.group_by(DEVICE).agg(executions=pl.len().cast(pl.Int64), stability=pl.col("worst").mean())
    return (
        runs.group_by(DEVICE)
        .agg(
            collectives=pl.len().cast(pl.Int64),
            last_fraction=pl.col("last").mean(),
            late_ns=pl.col("late_ns").median(),
            late_ns_p90=pl.col("late_ns").quantile(0.9),
            caused_wait_ns=pl.col("caused_ns").sum(),
        )
        .join(stable, on=DEVICE, how="left")
        .sort("caused_wait_ns", *DEVICE, descending=[True, False, False])
    )


def _measure_delays(collectives: pl.DataFrame) -> pl.DataFrame:
    """Each run with the delay of its device, whether the device was last, and the waiting that it caused."""
    took = pl.col("duration_ns")
    return (
        number_runs(collectives)
        .filter("shared")
        .with_columns(
            late_ns=took.max().over(COLLECTIVE_KEY) - took,
            # Of several shortest runs the first counts, so that no waiting counts twice.
            last=took.arg_min().over(COLLECTIVE_KEY) == pl.int_range(pl.len()).over(COLLECTIVE_KEY),
            waited_ns=(took - took.min()).sum().over(COLLECTIVE_KEY),
        )
        .with_columns(caused_ns=pl.when("last").then("waited_ns").otherwise(0))
    )
