"""Fields of the titles that XLA gives its NVTX ranges.

In: the distinct titles, without their domain. Out: one row per title: the module and program id of `XlaModule:#...#`,
the instruction of `Thunk:#...#`, the module and program id of a compile range; null if a title has no such field.
The fields `name` and `prefix` are free text and may contain commas, `=` and `#`, so fields are matched from the right.

Source: openxla/xla:xla/tsl/profiler/lib/nvtx_utils.h, openxla/xla:xla/service/gpu/runtime/annotation.cc
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightjar_profiling.readers.projection import Ints

DOMAIN = "TSL"  # NVTX domain of XLA's ranges
TAIL = r"(?:,\w+=[^,#]*)*#$"  # fields that later versions append, such as unique_hlo_op_id
THUNK = rf"^Thunk:#(?:.*,)?hlo_op=([^,#]+){TAIL}"
MODULE = rf"^XlaModule:#(?:.*,)?hlo_module=([^,#]+){TAIL}"
PROGRAM_ID = r"^Xla.*[#,]program_id=(\d+)[,#][^#]*#?$"
COMPILED = r"^Xla.*[#,]module=([^,#]+)[,#][^#]*#?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Titles:
    """The titles of ranges. Programs run many times, so few titles are distinct, and only those are parsed.

    Attributes:
        distinct: the distinct titles; the last is null.
        rows: row of each range's title in `distinct`.
    """

    distinct: pl.Series
    rows: Ints

    def of_ranges(self, values: pl.Series) -> pl.Series:
        """Expands one value per distinct title to one value per range."""
        return values.gather(self.rows)


def collect_titles(titles: pl.Series) -> Titles:
    """Collects the distinct titles; the series may be text or categories.

    >>> titles = collect_titles(pl.Series(["b", None, "a", "b"]))
    >>> titles.of_ranges(titles.distinct).to_list()
    ['b', None, 'a', 'b']
    """
    if not isinstance(titles.dtype, pl.Categorical):
        titles = titles.cast(pl.String).cast(pl.Categorical(pl.Categories.random()))
    distinct = titles.drop_nulls().unique()
    distinct_codes = distinct.to_physical().to_numpy().astype(np.int64)
    rows = np.full(int(distinct_codes.max(initial=0)) + 2, len(distinct_codes))
    rows[distinct_codes] = np.arange(len(distinct_codes))
    codes = titles.to_physical().cast(pl.Int64).fill_null(len(rows) - 1).to_numpy()
    return Titles(distinct=distinct.cast(pl.String).extend_constant(None, 1), rows=rows[codes])


def read_titles(titles: pl.Series) -> pl.DataFrame:
    """Reads the fields of each title.

    Returns:
        Columns: `instruction`, `module`, `program_id`, `compiled` (the module that a compile range works on).

    >>> read_titles(pl.Series(["Thunk:#name=f(a=1,hlo_op=x)[b#],hlo_op=dot.1,unique_hlo_op_id=7#"]))["instruction"][0]
    'dot.1'
    >>> read_titles(pl.Series(["XlaModule:#prefix=jit(f)/a,b=c,hlo_module=jit_f,program_id=40#"])).row(0)
    (None, 'jit_f', 40, None)
    """
    return pl.DataFrame({"title": titles}).select(
        instruction=pl.col("title").str.extract(THUNK),
        module=pl.col("title").str.extract(MODULE),
        program_id=pl.col("title").str.extract(PROGRAM_ID).cast(pl.Int64),
        compiled=pl.col("title").str.extract(COMPILED),
    )


def hash_to_program_id(module: str) -> int:
    """A program id below 0 for a module that runs without one, such as those that the autotuner times.

    It depends on the name only, so that all ranks use the same id.
    """
    return -1 - zlib.crc32(module.encode())
