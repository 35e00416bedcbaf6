"""Which program and which thunk does each host range belong to, and which executions of programs do they make?

In: the titles of nested ranges and their parents. Out: for each range the nearest `Thunk` and the nearest `XlaModule`
around it, itself included; from runs of modules the numbered table `executions`. Thunks may be nested (a conditional,
a command buffer): work belongs to the innermost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.capture_folder.tables import SCHEMAS
from nightjar_profiling.readers.annotations.xla_titles import Titles, name_unknown, read_titles
from nightjar_profiling.readers.projection import NONE, Ints

PROGRAM = ("rank", "device", "program_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaRanges:
    """What XLA says of each range; numbers are row numbers, -1 for none.

    Attributes:
        thunk: nearest Thunk.
        module: nearest XlaModule.
        is_thunk: whether the range is a Thunk.
        has_thunk: whether a Thunk lies below this range.
        told: of each distinct title `instruction`, `module`, `program_id`, `compiled`, as `read_titles` gives them; the
            id of a module that has none is below 0.
        place: of each range, the row of its title in `told`; then one more, of a title that says nothing.
    """

    thunk: Ints
    module: Ints
    is_thunk: NDArray[np.bool_]
    has_thunk: NDArray[np.bool_]
    told: pl.DataFrame
    place: Ints

    def tell(self, name: str, rows: Ints) -> pl.Series:
        """What the titles of these ranges say; null for -1."""
        return self.told[name].gather(self.place[rows])


def read_xla_ranges(titles: Titles, parent: Ints) -> XlaRanges:
    """Reads titles.

    Args:
        titles: without their domain; null for a range of another domain.
        parent: row number of the range around each, or -1.
    """
    read = read_titles(titles.distinct)
    modules = read["module"].unique().drop_nulls()
    unknown = {module: name_unknown(module) for module in modules}
    number = pl.col("module").replace_strict(unknown, default=None, return_dtype=pl.Int64)
    read = read.with_columns(pl.coalesce("program_id", number))
    is_thunk, is_module = (read[name].is_not_null().to_numpy()[titles.place] for name in ("instruction", "module"))
    thunk = find_nearest(parent, is_thunk)
    has_thunk = np.zeros(len(parent), bool)
    inner = np.flatnonzero(is_thunk & (parent >= 0))
    around = thunk[parent[inner]]
    has_thunk[around[around >= 0]] = True
    return XlaRanges(
        thunk=thunk,
        module=find_nearest(parent, is_module),
        is_thunk=is_thunk,
        has_thunk=has_thunk,
        told=read,
        place=np.append(titles.place, len(read) - 1),
    )


def find_nearest(parent: Ints, wanted: NDArray[np.bool_]) -> Ints:
    """The nearest wanted range around each, itself included, or -1; around a range that lies in itself, any.

    >>> find_nearest(np.array([-1, 0, 1, 1]), np.array([True, False, False, True])).tolist()
    [0, 0, 0, 3]
    """
    small = np.int32 if len(parent) < 1 << 31 else np.int64
    ahead = np.where(wanted, np.arange(len(parent), dtype=small), parent.astype(small))
    ahead = np.append(ahead, small(NONE))  # where -1 leads, and stays
    for _ in range(len(parent).bit_length() + 1):  # each jump leads as far as all before it together
        further = ahead.take(ahead, mode="wrap")
        if np.array_equal(further, ahead):
            break
        ahead = further
    return ahead[:-1].astype(np.int64)


def number_executions(runs: pl.DataFrame) -> pl.DataFrame:
    """Numbers the runs of programs on devices by their start.

    Args:
        runs: `run` (any key), `rank`, `device`, `program_id`, `start_ns`, `duration_ns`, `complete`.

    Returns:
        The same rows by start, with the column `execution`.
    """
    ordered = runs.sort("start_ns", maintain_order=True)
    return ordered.with_columns(execution=pl.int_range(pl.len(), dtype=pl.Int64).over(PROGRAM))


def execution_table(numbered: pl.DataFrame) -> pl.DataFrame:
    """The table `executions` of numbered runs."""
    return numbered.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["executions"].items())


def program_table(told: pl.DataFrame, fingerprints: dict[int, str]) -> pl.DataFrame:
    """The table `programs` of all modules that a trace names; a fingerprint is empty where there is no HLO."""
    named = told.drop_nulls("module").select("program_id", name="module").sort("program_id", "name")
    named = named.unique("program_id", keep="first", maintain_order=True)
    fingerprint = pl.col("program_id").replace_strict(fingerprints, default="", return_dtype=pl.String)
    return named.with_columns(fingerprint=fingerprint).select(*SCHEMAS["programs"])


def take(column: pl.Series, rows: Ints) -> pl.Series:
    """The values of these rows; null for -1."""
    places = pl.Series(rows).replace(NONE, None) if len(rows) else pl.Series([], dtype=pl.Int64)
    return column.gather(places)
