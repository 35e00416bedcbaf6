"""Collectives with their bandwidth and their waiting time.

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

from nightjar_profiling.capture_folder.tables import SCHEMAS, make_table
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
    """Fills `group` and `wait_ns`; both are null for a single traced device or unknown groups."""
    runs = find_groups(runs, make_table("groups", ()) if groups is None else groups)
    took = pl.col("duration_ns")
    wait = pl.when("shared").then(took - took.min().over(COLLECTIVE_KEY))
    return number_runs(runs).with_columns(wait_ns=wait.cast(pl.Int64)).drop("occurrence", "shared")


RUN = ["rank", "device", "program_id", "execution", "instruction"]
COLLECTIVE_KEY = ["program_id", "execution", "instruction", "occurrence", "group"]


def number_runs(collectives: pl.DataFrame) -> pl.DataFrame:
    """The rows with `occurrence`, and `shared`: whether several devices ran the collective, all in one group.

    The n-th run of an instruction in an execution of a program is one collective on all devices of a group. Without a
    known group (pairs of a permute, a trace without HLO) no waiting is measured.
    """
    devices = pl.len().over(COLLECTIVE_KEY)
    one_group = pl.col("group_size").is_null() | (devices <= pl.col("group_size"))
    return collectives.with_columns(occurrence=pl.int_range(pl.len()).over(RUN)).with_columns(
        shared=(devices > 1) & one_group
    )
