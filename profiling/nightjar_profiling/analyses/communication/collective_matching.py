"""Matching of `collectives` rows that belong to one collective across devices.

In: the table. Out: its rows, numbered. The n-th run of an instruction in an execution of a program is one collective on
all devices of a group. If an instruction runs in several groups at once (data parallelism combined with tensor
parallelism), `group` separates them. If the group is unknown (pairs of a permute, a trace without HLO), more devices
run the instruction than a group has, and waiting cannot be measured.
"""

from __future__ import annotations

import polars as pl

RUN = ["rank", "device", "program_id", "execution", "instruction"]
COLLECTIVE_KEY = ["program_id", "execution", "instruction", "occurrence", "group"]


def number_runs(collectives: pl.DataFrame) -> pl.DataFrame:
    """The rows with `occurrence`, and `shared`: whether several devices ran the collective, all in one group."""
    devices = pl.len().over(COLLECTIVE_KEY)
    one_group = pl.col("group_size").is_null() | (devices <= pl.col("group_size"))
    return collectives.with_columns(occurrence=pl.int_range(pl.len()).over(RUN)).with_columns(
        shared=(devices > 1) & one_group
    )
