"""The steady-state executions of each program.

In: the tables of a capture. Out: the executions without the warm-up. The first execution of a program whose compilation
was recorded is left out, since it includes that cost. If the trace holds collectives, one more execution of every
program is left out, since profilers start at different moments on different ranks. A program without HLO in a trace
that holds the HLO of others is an autotuning trial, and is left out. If nothing would remain, all executions are kept.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analysis.py (`apply_warmup_heuristics`), which counts
executions by fingerprint: of a program that was compiled twice it leaves out the first executions of only one
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

RUN = ["rank", "device", "program_id", "execution"]


def find_steady_state(tables: Tables) -> pl.DataFrame:
    """The rows of `executions` in the steady state, without those that the end of the trace cut off."""
    compiled = tables.compile["program_id"].drop_nulls().unique().implode()
    first = pl.col("program_id").is_in(compiled).cast(pl.Int64) + int(tables.collectives.height > 0)
    whole = tables.executions.filter(pl.col("complete").fill_null(value=True))
    steady = whole.filter(pl.col("execution") >= first).filter(~_is_trial(tables))
    if steady.height:
        return steady
    return whole


def _is_trial(tables: Tables) -> pl.Expr:
    """Whether the program of a row has no HLO while another program has."""
    with_hlo = tables.programs.filter(pl.col("fingerprint").fill_null("") != "")["program_id"]
    return ~pl.col("program_id").is_in(with_hlo.implode()) & bool(len(with_hlo))


def keep_steady_state(tables: Tables, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the steady state; they need the columns `rank`, `device`, `program_id` and `execution`."""
    return rows.join(find_steady_state(tables).select(RUN), on=RUN, how="semi")
