"""Which rows of `collectives` are one collective, run by several devices together?

In: the table. Out: its rows, numbered. The n-th run of an instruction in an execution of a program is one collective on
all devices of a group. Where an instruction runs in several groups side by side (data parallelism beside tensor
parallelism), `group` tells them apart. Where it is not known (the pairs of a permute, a trace without HLO) more devices
run it than a group has, and nothing can be said of waiting.
"""

from __future__ import annotations

import polars as pl

RUN = ["rank", "device", "program_id", "execution", "instruction"]
TOGETHER = ["program_id", "execution", "instruction", "occurrence", "group"]


def number_runs(collectives: pl.DataFrame) -> pl.DataFrame:
    """The rows with `occurrence`, and `shared`: whether several devices ran it, all of them in one group."""
    devices = pl.len().over(TOGETHER)
    one_group = pl.col("group_size").is_null() | (devices <= pl.col("group_size"))
    return collectives.with_columns(occurrence=pl.int_range(pl.len()).over(RUN)).with_columns(
        shared=(devices > 1) & one_group
    )
