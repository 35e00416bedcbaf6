"""Functions that were compiled again: at which lines of the program, and how their arguments differed.

In: the tables `compile`, `programs` and `instructions`. Out: a row for each function and line. A function is known by
the name of its program, in which `<lambda>` is `lambda`.
"""

from __future__ import annotations

from pathlib import PurePath

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

COMPILED = "compile by XLA"
MADE_AGAIN = "other static arguments, or a new function each time"


def find_recompiled(tables: Tables) -> pl.DataFrame:
    """The functions that were compiled more than once at one line, the longest first.

    Returns: columns `function`, `at`, `times`, `time` (ns, with tracing and lowering) and `because`.
    """
    spans = tables.compile.filter(pl.col("parent_id").is_null() & pl.col("called_at").is_not_null())
    again = (
        spans.group_by(function=plain(pl.col("program")), at="called_at")
        .agg(times=(pl.col("name") == COMPILED).sum().cast(pl.Int64), time=pl.col("duration_ns").sum())
        .filter(pl.col("times") > 1)
        .sort("time", "function", descending=[True, False])
    )
    why = [
        explain_shapes(tables, tables.programs.filter(plain(pl.col("name")) == name)).removeprefix(": ") or MADE_AGAIN
        for name in again["function"]
    ]
    places = [str(PurePath(at).name) for at in again["at"]]
    return again.with_columns(at=pl.Series(places, dtype=pl.String), because=pl.Series(why, dtype=pl.String))


def explain_shapes(tables: Tables, programs: pl.DataFrame) -> str:
    """How the arguments of programs differ."""
    parameters = tables.instructions.join(programs, on="program_id", how="semi").filter(opcode="parameter")
    shapes = (
        parameters.filter(pl.col("op_name") != "")
        .group_by("op_name", maintain_order=True)
        .agg(pl.col("shape").unique(maintain_order=True))
    )
    for argument, seen in shapes.iter_rows():
        if len(seen) > 1:
            return f": its argument {argument} is {', '.join(map(str, seen[:3]))}"
    return ""


def list_callers(compiles: pl.DataFrame, name: str) -> str:
    """The lines that had a function compiled, if they are known."""
    lines = compiles.filter(plain(pl.col("program")) == name)["called_at"].drop_nulls().unique(maintain_order=True)
    if lines.is_empty():
        return ""
    return f" at {', '.join(PurePath(line).name for line in lines[:3])}"


def plain(name: pl.Expr) -> pl.Expr:
    """A function's name as in the name of a program, without `jit_`: `<lambda>` is `lambda`."""
    return name.str.strip_prefix("jit_").str.replace_all(r"\W+", "_").str.strip_chars("_")
