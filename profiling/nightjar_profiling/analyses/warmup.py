"""Which executions of a program are its steady state?

In: the tables of a capture. Out: the executions without the first ones. The first execution of a program whose
compilation was recorded is left out, as it pays for that; where the trace holds collectives, one more of every
program, as profilers start at different moments on different ranks. A program of which the trace holds no HLO, while
it holds that of others, is a trial of the autotuner, and is left out. Where nothing would be left, all is kept.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py (`apply_warmup_heuristics`), which counts
executions by fingerprint: of a program that was compiled twice it leaves out the first executions of one only
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

RUN = ["rank", "device", "program_id", "execution"]


def find_steady(tables: Tables) -> pl.DataFrame:
    """The rows of `executions` that belong to the steady state, without those cut off by the end of the trace."""
    compiled = tables.compile["program_id"].drop_nulls().unique().implode()
    first = pl.col("program_id").is_in(compiled).cast(pl.Int64) + int(tables.collectives.height > 0)
    whole = tables.executions.filter(pl.col("complete").fill_null(value=True))
    steady = whole.filter(pl.col("execution") >= first).filter(~_is_trial(tables))
    return steady if steady.height else whole


def _is_trial(tables: Tables) -> pl.Expr:
    """Whether the program of a row is one without HLO among others with."""
    known = tables.programs.filter(pl.col("fingerprint").fill_null("") != "")["program_id"].implode()
    return ~pl.col("program_id").is_in(known) & bool(len(known.item()) if len(known) else 0)


def keep_steady(tables: Tables, rows: pl.DataFrame) -> pl.DataFrame:
    """Of rows with `rank`, `device`, `program_id` and `execution`, those of the steady state."""
    return rows.join(find_steady(tables).select(RUN), on=RUN, how="semi")
