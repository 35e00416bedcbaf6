"""What do the titles say that XLA gives its NVTX ranges?

In: titles without their domain, each distinct one once. Out: one row per title: the module and program id of
`XlaModule:#...#`, the instruction of `Thunk:#...#`, the module and program id of a compile range; null where a title
says no such thing. A field `name` or `prefix` is free text with commas, `=` and `#` in it, so that fields are looked
for from the right.

Source: openxla/xla:xla/tsl/profiler/lib/nvtx_utils.h, openxla/xla:xla/service/gpu/runtime/annotation.cc
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightjar_profiling.readers.projection import Ints

DOMAIN = "TSL"  # of NVTX, in which XLA marks its ranges
TAIL = r"(?:,\w+=[^,#]*)*#$"  # fields that later versions append, such as unique_hlo_op_id
THUNK = rf"^Thunk:#(?:.*,)?hlo_op=([^,#]+){TAIL}"
MODULE = rf"^XlaModule:#(?:.*,)?hlo_module=([^,#]+){TAIL}"
PROGRAM_ID = r"^Xla.*[#,]program_id=(\d+)[,#][^#]*#?$"
COMPILED = r"^Xla.*[#,]module=([^,#]+)[,#][^#]*#?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Titles:
    """The titles of ranges; as programs run again and again, few are distinct, and only those are looked into.

    Attributes:
        distinct: titles, the last of them null.
        place: of each range, the place of its title in `distinct`.
    """

    distinct: pl.Series
    place: Ints

    def of_ranges(self, found: pl.Series) -> pl.Series:
        """What was found for each distinct title, by range."""
        return found.gather(self.place)


def collect_titles(titles: pl.Series) -> Titles:
    """The distinct ones among titles, which may be text or categories.

    >>> found = collect_titles(pl.Series(["b", None, "a", "b"]))
    >>> found.of_ranges(found.distinct).to_list()
    ['b', None, 'a', 'b']
    """
    if not isinstance(titles.dtype, pl.Categorical):
        titles = titles.cast(pl.String).cast(pl.Categorical(pl.Categories.random()))
    once = titles.drop_nulls().unique()
    numbers = once.to_physical().to_numpy().astype(np.int64)
    places = np.full(int(numbers.max(initial=0)) + 2, len(numbers))
    places[numbers] = np.arange(len(numbers))
    codes = titles.to_physical().cast(pl.Int64).fill_null(len(places) - 1).to_numpy()
    return Titles(distinct=once.cast(pl.String).extend_constant(None, 1), place=places[codes])


def read_titles(titles: pl.Series) -> pl.DataFrame:
    """What each title says.

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


def name_unknown(module: str) -> int:
    """The program id, below 0, of a module that runs without one, as those do which the autotuner times.

    It depends on nothing but the name, so that ranks agree.
    """
    return -1 - zlib.crc32(module.encode())
