"""Which values did the host attach to its NVTX ranges?

In: the events of an nsys export, and the tables of the layouts that their payloads have. Out: a JSON text for each
event that has a payload: a number, what nsys itself wrote as JSON, or an object with the fields of a layout. NCCL gives
the message size and the communicator of each call so, XLA the program and the instruction.

A payload in binary is in the column `binaryData`, which `nsys export` writes with `--include-blobs=true`: a header of
32 bytes (domain, id of the layout, size of the payload, offset of its end), then the payload. What is cut off, or has a
layout that is not known, is left out; a field of a type that is not known is null.

Source: NVIDIA/NVTX:c/include/nvtx3/nvToolsExtPayload.h (NVTX_PAYLOAD_ENTRY_TYPE_*); the header: GindaChen/nsys-ai
(nccl_payload_breakdown, checked there on nsys 2026)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from nightjar_profiling.readers.nsys.nsys_tables import NsysTables

WHOLE = ("uint64Value", "int64Value", "uint32Value", "int32Value")
REAL = ("doubleValue", "floatValue")
COLUMNS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(WHOLE, pl.Int64),
    **dict.fromkeys(REAL, pl.Float64),
    "jsonTextId": pl.Int64,
    "jsonText": pl.String,
    "binaryData": pl.Binary,
}
HEADER = struct.Struct("<IIQQQ")  # domain, 0, layout, size, end
INTEGERS = dict(zip(range(1, 19), "bBhHiIqQqQbBhHiIqQ", strict=True))  # C's own as on 64-bit Linux, then with sizes
CODES = INTEGERS | {19: "f", 20: "d", 22: "Q", 23: "Q", 24: "i", 25: "B", 26: "H", 27: "I", 32: "B"}
CODES |= {42: "e", 43: "f", 44: "d", 80: "Q", 128: "Q"}
STRINGS = {75: ("utf-8", 1), 76: ("utf-8", 1), 77: ("utf-16-le", 2), 78: ("utf-32-le", 4)}
REGISTERED = 80
IS_ARRAY, FIXED = 3 << 4, 1 << 4
ELSEWHERE = 0b1110  # flags of an entry whose value does not lie in the payload itself
DEEPEST, LARGEST = 8, 4096  # layouts within layouts, as one may hold itself; values of one payload


@dataclass(frozen=True, slots=True)
class _Entry:
    flags: int
    kind: int
    name: str
    length: int
    offset: int | None


@dataclass(slots=True)
class _Layouts:
    """Layouts by domain and id."""

    entries: dict[tuple[int, int], list[_Entry]] = field(default_factory=dict)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    strings: Mapping[int, str] = field(default_factory=dict)
    left: int = 0

    def decode(self, blob: bytes) -> object:
        """The value of a whole payload; None where its layout is not known or it is cut off."""
        if len(blob) >= 2 * HEADER.size and not len(blob) % 2 and blob.isalnum():
            try:
                blob = bytes.fromhex(blob.decode("ascii"))  # as DuckDB and text columns give it
            except ValueError:
                return None
        if len(blob) < HEADER.size:
            return None
        domain, _, layout, size, _ = HEADER.unpack_from(blob)
        payload = blob[HEADER.size :]
        key = (domain, layout)
        if key not in self.entries or len(payload) < max(size, self.sizes.get(key, 0)):
            return None
        self.left = LARGEST
        return self._read(key, payload, 0, 0)

    def _read(self, key: tuple[int, int], payload: bytes, at: int, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        end = at
        for number, entry in enumerate(self.entries[key]):
            size = self._size((key[0], entry.kind), entry)
            place = -(-end // min(size, 8)) * min(size, 8) if size else end
            if entry.offset is not None or number == 0:
                place = at + (entry.offset or 0)
            count = min(entry.length, self.left) if entry.flags & IS_ARRAY == FIXED and entry.kind not in STRINGS else 1
            each = [self._value(key[0], entry, payload, place + n * size, depth) for n in range(count)]
            found[entry.name or str(number)] = each if count != 1 or entry.flags & IS_ARRAY else each[0]
            end = place + count * size
        return found

    def _size(self, key: tuple[int, int], entry: _Entry) -> int:
        if entry.kind in CODES:
            return struct.calcsize(CODES[entry.kind])
        return entry.length * STRINGS[entry.kind][1] if entry.kind in STRINGS else self.sizes.get(key, 0)

    def _value(self, domain: int, entry: _Entry, payload: bytes, at: int, depth: int) -> object:
        self.left -= 1
        variable = entry.flags & IS_ARRAY not in (0, FIXED)
        if entry.flags & ELSEWHERE or (variable and entry.kind not in STRINGS) or at > len(payload):
            return None
        if entry.kind in STRINGS:
            name, width = STRINGS[entry.kind]
            text = payload[at : at + entry.length * width] if entry.length and not variable else payload[at:]
            return text[: len(text) // width * width].decode(name, errors="replace").split("\0")[0]
        if (domain, entry.kind) in self.entries:
            inside = self.left > 0 and depth < DEEPEST
            return self._read((domain, entry.kind), payload, at, depth + 1) if inside else None
        code = CODES.get(entry.kind)
        if code is None or at + struct.calcsize(code) > len(payload):
            return None
        value: int | float = struct.unpack_from(f"<{code}", payload, at)[0]
        return self.strings.get(int(value), value) if entry.kind == REGISTERED else value


def read_payloads(tables: NsysTables, events: pl.DataFrame, strings: pl.DataFrame) -> pl.Series:
    """The payload of each event as JSON; null where it has none.

    Args:
        tables: of the export.
        events: with those of the columns COLUMNS that hold anything.
        strings: registered strings.
    """
    there = [name for name in COLUMNS if name in events.columns]
    found = [pl.col(name).cast(pl.String) for name in (*WHOLE, *REAL) if name in there]
    if "binaryData" in there:
        blobs = events["binaryData"].drop_nulls().unique()
        layouts = _read_layouts(tables, strings)
        decoded = [layouts.decode(blob) for blob in blobs]
        texts = [None if one is None else json.dumps(one, allow_nan=True) for one in decoded]
        known = dict(zip(blobs.to_list(), texts, strict=True))
        found.insert(0, pl.col("binaryData").replace_strict(known, default=None, return_dtype=pl.String))
    if "jsonTextId" in there:
        known_texts = pl.col("jsonTextId").replace_strict(
            strings["id"], strings["value"], default=None, return_dtype=pl.String
        )
        found.insert(0, known_texts)
    if "jsonText" in there:
        found.insert(0, pl.col("jsonText"))
    if not found:
        return pl.Series("payload", [None], pl.String).new_from_index(0, events.height)
    return events.select(payload=pl.coalesce(found))["payload"]


def _read_layouts(tables: NsysTables, strings: pl.DataFrame) -> _Layouts:
    """All layouts; a process registers its own, but under the same id they are equal."""
    whole = pl.Int64
    sizes = tables.read("NVTX_PAYLOAD_SCHEMAS", {"domainId": whole, "schemaId": whole, "payloadSize": whole})
    columns: dict[str, type[pl.DataType]] = {"domainId": whole, "schemaId": whole, "idx": whole, "flags": whole}
    columns |= {"type": whole, "name": pl.String, "arrayOrUnionDetail": whole, "offset": whole}
    entries = tables.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns).unique(["domainId", "schemaId", "idx"])
    layouts = _Layouts(strings=dict(strings.drop_nulls().iter_rows()))
    for domain, layout, _, flags, kind, name, length, offset in entries.sort("domainId", "schemaId", "idx").iter_rows():
        one = _Entry(flags or 0, kind or 0, name or "", max(length or 0, 0), offset)
        layouts.entries.setdefault((domain, layout), []).append(one)
    layouts.sizes = {(domain, layout): max(size or 0, 0) for domain, layout, size in sizes.iter_rows()}
    return layouts
