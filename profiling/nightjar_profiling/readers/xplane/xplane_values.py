"""What are the values of a stat, whichever way the profiler wrote them?

In: a `Stat` column as decoded. Out: integers (a number may be written as text, or as a reference to text), or `Texts`:
codes and a list of names, from which a table's text column is made without touching each event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.readers.xplane.xplane_events import BINARY, DOUBLE, REFERENCE, TEXT, Events, double_of
from nightjar_profiling.readers.xplane.xplane_planes import Plane, text_of

LARGEST_TABLE = 1 << 20  # ids up to here are looked up in a table, larger ones by bisection
INTEGER = re.compile(r"-?\d{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of rows: `names[codes[row]]`; -1 where there is none."""

    codes: Positions
    names: list[str]

    def take(self, rows: Positions | NDArray[np.bool_]) -> Texts:
        """Those of some rows."""
        return Texts(codes=self.codes[rows], names=self.names)

    def column(self) -> pl.Series | str | None:
        """As a column of a table; one text where all rows have the same."""
        if len(self.codes) and (self.codes == self.codes[0]).all():
            return self.names[self.codes[0]] if self.codes[0] >= 0 else None
        codes = np.where(self.codes < 0, len(self.names), self.codes) if (self.codes < 0).any() else self.codes
        return pl.Series([*self.names, None], dtype=pl.String).gather(codes.astype(np.uint32))

    def match(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Whose text a pattern matches from its beginning."""
        matching = np.array([*(pattern.match(text) is not None for text in self.names), False])
        return matching[self.codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Integers of rows, and which rows have one."""

    values: Positions
    known: NDArray[np.bool_]

    def take(self, rows: Positions | NDArray[np.bool_]) -> Integers:
        """Those of some rows."""
        return Integers(values=self.values[rows], known=self.known[rows])

    def column(self) -> pl.Series | None:
        """As a column of a table; None where no row has one."""
        if not self.known.any():
            return None
        column = pl.Series(self.values)
        return column if self.known.all() else column.set(pl.Series(~self.known), None)


def constant(value: int, count: int) -> Positions:
    """A column of one value, which takes no memory."""
    return np.broadcast_to(np.int64(value), count)


def unknown(count: int) -> Integers:
    """Integers that no row has."""
    return Integers(values=constant(0, count), known=np.broadcast_to(np.False_, count))


def as_int64(value: int) -> int:
    """A number of up to 64 bits as a table holds it: ids of programs may use the top bit.

    >>> as_int64(2**64 - 1)
    -1
    """
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def look_up(ids: Positions, names: Mapping[int, str], default: str | None = None) -> Texts:
    """The names of ids; an id that has none is `default`, or no text."""
    keys = np.array(sorted(names), np.int64)
    listed = [names[number] for number in keys.tolist()]
    if len(keys) and keys[0] >= 0 and keys[-1] < LARGEST_TABLE:
        table = np.full(int(keys[-1]) + 3, -1)  # with a place before the first and one behind the last
        table[keys + 1] = np.arange(len(keys))
        codes = table.take(ids + 1, mode="clip")
    else:
        at = np.searchsorted(keys, ids)
        codes = np.where(np.append(keys, 0)[at] == ids, at, -1) if len(keys) else np.full(len(ids), -1)
        codes[at == len(keys)] = -1
    if default is not None:
        codes = np.where(codes < 0, len(listed), codes)
        listed.append(default)
    return Texts(codes=codes, names=listed)


def texts_of(plane: Plane, events: Events, name: str) -> Texts:
    """A stat as text; one that is absent, or a number, is none."""
    if name not in events.stats:
        return Texts(codes=constant(-1, len(events.metadata_id)), names=[])
    stat = events.stats[name]
    found = look_up(stat.value, plane.stat_names)
    if (stat.kind == REFERENCE).all():
        return found
    codes = np.where(stat.kind == REFERENCE, found.codes, -1)
    inline = (stat.kind == TEXT) | (stat.kind == BINARY)
    if inline.any():
        codes[inline] = stat.value[inline] + len(found.names)
    return Texts(codes=codes, names=[*found.names, *map(text_of, events.texts)])


def integers_of(plane: Plane, events: Events, name: str) -> Integers:
    """A stat as integers; one that is absent, or no number, is not known."""
    if name not in events.stats:
        return unknown(len(events.metadata_id))
    stat = events.stats[name]
    known, values = stat.kind > 0, stat.value
    if (numbers := stat.kind == DOUBLE).any():
        values = values.copy()
        values[numbers] = [_whole(double_of(bits)) for bits in values[numbers].tolist()]
    if ((stat.kind == REFERENCE) | (stat.kind == TEXT) | (stat.kind == BINARY)).any():
        texts = texts_of(plane, events, name)
        parsed = [_parse(text) for text in texts.names]
        table = np.array([0 if one is None else one for one in parsed] + [0], np.int64)
        good = np.array([one is not None for one in parsed] + [False])
        written = (stat.kind == REFERENCE) | (stat.kind >= TEXT)
        values = np.where(written, table[texts.codes], values)
        known = known & (~written | good[texts.codes])
    return Integers(values=values, known=known)


def numbers_in(texts: Texts, pattern: re.Pattern[str]) -> Integers:
    """The number that a pattern's group finds in each text."""
    if not texts.names:
        return unknown(len(texts.codes))
    found = [pattern.search(text) for text in texts.names]
    table = np.array([0 if one is None else as_int64(int(one[1])) for one in found] + [0], np.int64)
    known = np.array([one is not None for one in found] + [False])
    return Integers(values=table[texts.codes], known=known[texts.codes])


def _parse(text: str) -> int | None:
    return as_int64(int(text)) if INTEGER.fullmatch(text) else None


def _whole(value: float) -> int:
    return int(value) if abs(value) < 2**63 else 0
