"""Program and thunk of each host range, and the executions of programs.

In: the titles of nested ranges and their parents. Out: for each range the innermost `Thunk` and `XlaModule` range that
contains it (itself included), and the table `executions` from the runs of modules. Thunks may be nested (a conditional,
a command buffer): work belongs to the innermost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.capture_folder.tables import SCHEMAS
from nightjar_profiling.readers.annotations.xla_titles import Titles, hash_to_program_id, read_titles
from nightjar_profiling.readers.projection import NONE, Ints

PROGRAM = ("rank", "device", "program_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaRanges:
    """Thunk, module and title fields of each range; numbers are row numbers, -1 for none.

    Attributes:
        thunk: innermost Thunk range around each range.
        is_thunk: whether the range is a Thunk.
        has_thunk: whether the range contains a Thunk.
        fields: `instruction`, `module`, `program_id` and `compiled` of each distinct title, as `read_titles` returns
            them; the id of a module without a program id is below 0.
        rows: row of each range's title in `fields`; the last element, read for -1, is the row of the null title.
    """

    thunk: Ints
    module: Ints
    is_thunk: NDArray[np.bool_]
    has_thunk: NDArray[np.bool_]
    fields: pl.DataFrame
    rows: Ints

    def gather(self, name: str, rows: Ints) -> pl.Series:
        """A field of the titles of these ranges; null for -1."""
        return self.fields[name].gather(self.rows[rows])


def read_xla_ranges(titles: Titles, parent: Ints) -> XlaRanges:
    """Reads the titles of ranges."""
    fields = read_titles(titles.distinct)
    modules = fields["module"].unique().drop_nulls()
    ids = {module: hash_to_program_id(module) for module in modules}
    made_id = pl.col("module").replace_strict(ids, default=None, return_dtype=pl.Int64)
    fields = fields.with_columns(pl.coalesce("program_id", made_id))
    is_thunk, is_module = (fields[name].is_not_null().to_numpy()[titles.rows] for name in ("instruction", "module"))
    thunk = find_nearest(parent, is_thunk)
    has_thunk = np.zeros(len(parent), bool)
    nested = np.flatnonzero(is_thunk & (parent >= 0))
    around = thunk[parent[nested]]
    has_thunk[around[around >= 0]] = True
    return XlaRanges(
        thunk=thunk,
        module=find_nearest(parent, is_module),
        is_thunk=is_thunk,
        has_thunk=has_thunk,
        fields=fields,
        rows=np.append(titles.rows, len(fields) - 1),
    )


def find_nearest(parent: Ints, selected: NDArray[np.bool_]) -> Ints:
    """Finds the nearest selected ancestor of each range, itself included, or -1; any, if a range is its own ancestor.

    >>> find_nearest(np.array([-1, 0, 1, 1]), np.array([True, False, False, True])).tolist()
    [0, 0, 0, 3]
    """
    dtype = np.int32 if len(parent) < 1 << 31 else np.int64
    nearest = np.where(selected, np.arange(len(parent), dtype=dtype), parent.astype(dtype))
    nearest = np.append(nearest, dtype(NONE))  # -1 points to itself
    for _ in range(len(parent).bit_length() + 1):  # each round doubles the distance
        doubled = nearest.take(nearest, mode="wrap")
        if np.array_equal(doubled, nearest):
            break
        nearest = doubled
    return nearest[:-1].astype(np.int64)


def number_executions(runs: pl.DataFrame) -> pl.DataFrame:
    """Numbers the runs of each program on each device by start time.

    Args:
        runs: `run` (any key), `rank`, `device`, `program_id`, `start_ns`, `duration_ns`, `complete`.

    Returns:
        The same rows by start, with the column `execution`.
    """
    ordered = runs.sort("start_ns", maintain_order=True)
    return ordered.with_columns(execution=pl.int_range(pl.len(), dtype=pl.Int64).over(PROGRAM))


def execution_table(numbered: pl.DataFrame) -> pl.DataFrame:
    """Makes the table `executions` from numbered runs."""
    return numbered.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["executions"].items())


def program_table(fields: pl.DataFrame, fingerprints: dict[int, str]) -> pl.DataFrame:
    """Makes the table `programs` of the modules in a trace; the fingerprint is empty without HLO."""
    named = fields.drop_nulls("module").select("program_id", name="module").sort("program_id", "name")
    named = named.unique("program_id", keep="first", maintain_order=True)
    fingerprint = pl.col("program_id").replace_strict(fingerprints, default="", return_dtype=pl.String)
    return named.with_columns(fingerprint=fingerprint, lowered=pl.lit(None, pl.Boolean)).select(*SCHEMAS["programs"])


def take(column: pl.Series, rows: Ints) -> pl.Series:
    """The values of these rows; null for -1."""
    if len(rows):
        indices = pl.Series(rows).replace(NONE, None)
    else:
        indices = pl.Series([], dtype=pl.Int64)
    return column.gather(indices)
