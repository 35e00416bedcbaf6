"""Values of stats, in each of the profiler's encodings.

In: a decoded `Stat` column. Out: integers (a number may be written as text, or as a reference to text), or `Texts`:
codes and a list of names, which become a text column of a table without a loop over events.
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

LARGEST_TABLE = 1 << 20  # largest id for a lookup table; larger ids are found by bisection
INTEGER = re.compile(r"-?\d{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of rows: `names[codes[row]]`; code -1 means none."""

    codes: Positions
    names: list[str]

    def take(self, rows: Positions | NDArray[np.bool_]) -> Texts:
        return Texts(codes=self.codes[rows], names=self.names)

    def column(self) -> pl.Series | str | None:
        """Converts to a table column; a single text if all rows have the same."""
        if len(self.codes) and (self.codes == self.codes[0]).all():
            return self.names[self.codes[0]] if self.codes[0] >= 0 else None
        if (self.codes < 0).any():
            codes = np.where(self.codes < 0, len(self.names), self.codes)
        else:
            codes = self.codes
        return pl.Series([*self.names, None], dtype=pl.String).gather(codes.astype(np.uint32))

    def match(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which texts a pattern matches from the start."""
        matching = np.array([*(pattern.match(text) is not None for text in self.names), False])
        return matching[self.codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Integers:
    """Integers of rows, and which rows have a value."""

    values: Positions
    known: NDArray[np.bool_]

    def take(self, rows: Positions | NDArray[np.bool_]) -> Integers:
        return Integers(values=self.values[rows], known=self.known[rows])

    def column(self) -> pl.Series | None:
        """Converts to a table column; None if no row has a value."""
        if not self.known.any():
            return None
        column = pl.Series(self.values)
        if self.known.all():
            return column
        return column.set(pl.Series(~self.known), None)


def constant(value: int, count: int) -> Positions:
    """A column of one value, without memory per row."""
    return np.broadcast_to(np.int64(value), count)


def unknown(count: int) -> Integers:
    """Integers without a value in any row."""
    return Integers(values=constant(0, count), known=np.broadcast_to(np.False_, count))


def as_int64(value: int) -> int:
    """Converts an unsigned 64-bit number to the signed value in a table; program ids may use the top bit.

    >>> as_int64(2**64 - 1)
    -1
    """
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def look_up(ids: Positions, names: Mapping[int, str], default: str | None = None) -> Texts:
    """Looks up the names of ids; an id without a name gets `default`, or no text."""
    keys = np.array(sorted(names), np.int64)
    listed = [names[number] for number in keys.tolist()]
    if len(keys) and keys[0] >= 0 and keys[-1] < LARGEST_TABLE:
        table = np.full(int(keys[-1]) + 3, -1)  # with an element before the first and after the last
        table[keys + 1] = np.arange(len(keys))
        codes = table.take(ids + 1, mode="clip")
    else:
        positions = np.searchsorted(keys, ids)
        if len(keys):
            codes = np.where(np.append(keys, 0)[positions] == ids, positions, -1)
        else:
            codes = np.full(len(ids), -1)
        codes[positions == len(keys)] = -1
    if default is not None:
        codes = np.where(codes < 0, len(listed), codes)
        listed.append(default)
    return Texts(codes=codes, names=listed)


def texts_of(plane: Plane, events: Events, name: str) -> Texts:
    """A stat as text; absent stats and numbers have no text."""
    if name not in events.stats:
        return Texts(codes=constant(-1, len(events.metadata_id)), names=[])
    stat = events.stats[name]
    referenced = look_up(stat.value, plane.stat_names)
    if (stat.kind == REFERENCE).all():
        return referenced
    codes = np.where(stat.kind == REFERENCE, referenced.codes, -1)
    inline = (stat.kind == TEXT) | (stat.kind == BINARY)
    if inline.any():
        codes[inline] = stat.value[inline] + len(referenced.names)
    return Texts(codes=codes, names=[*referenced.names, *map(text_of, events.texts)])


def integers_of(plane: Plane, events: Events, name: str) -> Integers:
    """A stat as integers; absent stats and text without a number have no value."""
    if name not in events.stats:
        return unknown(len(events.metadata_id))
    stat = events.stats[name]
    is_set, values = stat.kind > 0, stat.value
    if (numbers := stat.kind == DOUBLE).any():
        values = values.copy()
        values[numbers] = [_whole(double_of(bits)) for bits in values[numbers].tolist()]
    if ((stat.kind == REFERENCE) | (stat.kind == TEXT) | (stat.kind == BINARY)).any():
        texts = texts_of(plane, events, name)
        parsed = [_parse(text) for text in texts.names]
        table = np.array([0 if value is None else value for value in parsed] + [0], np.int64)
        is_number = np.array([value is not None for value in parsed] + [False])
        written = (stat.kind == REFERENCE) | (stat.kind >= TEXT)
        values = np.where(written, table[texts.codes], values)
        is_set = is_set & (~written | is_number[texts.codes])
    return Integers(values=values, known=is_set)


def numbers_in(texts: Texts, pattern: re.Pattern[str]) -> Integers:
    """The number in each text, by a pattern with a group."""
    if not texts.names:
        return unknown(len(texts.codes))
    matches = [pattern.search(text) for text in texts.names]
    table = np.array([0 if match is None else as_int64(int(match[1])) for match in matches] + [0], np.int64)
    is_set = np.array([match is not None for match in matches] + [False])
    return Integers(values=table[texts.codes], known=is_set[texts.codes])


def _parse(text: str) -> int | None:
    if INTEGER.fullmatch(text):
        return as_int64(int(text))
    return None


def _whole(value: float) -> int:
    if abs(value) < 2**63:
        return int(value)
    return 0
