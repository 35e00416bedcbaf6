"""Payloads of NVTX ranges.

In: the events of an nsys export, and the tables of payload layouts. Out: a JSON text for each event that has a payload:
a number, the JSON that nsys wrote, or an object with the fields of the layout. NCCL records the message size and the
communicator of each call this way, XLA the program and the instruction.

Binary payloads are in the column `binaryData`, which `nsys export` writes with `--include-blobs=true`: a header of 32
bytes (domain, layout id, payload size, offset of its end), then the payload. Payloads that are truncated or have an
unknown layout are left out; a field of an unknown type is null.

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
INTEGERS = dict(zip(range(1, 19), "bBhHiIqQqQbBhHiIqQ", strict=True))  # C types on 64-bit Linux, then fixed-size ones
CODES = INTEGERS | {19: "f", 20: "d", 22: "Q", 23: "Q", 24: "i", 25: "B", 26: "H", 27: "I", 32: "B"}
CODES |= {42: "e", 43: "f", 44: "d", 80: "Q", 128: "Q"}
STRINGS = {75: ("utf-8", 1), 76: ("utf-8", 1), 77: ("utf-16-le", 2), 78: ("utf-32-le", 4)}
REGISTERED = 80
IS_ARRAY, FIXED = 3 << 4, 1 << 4
ELSEWHERE = 0b1110  # flags of an entry whose value is not in the payload itself
DEEPEST, LARGEST = 8, 4096  # depth of nested layouts, which may be recursive; values per payload


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
        """Decodes a payload; None if it is truncated or its layout is unknown."""
        if len(blob) >= 2 * HEADER.size and not len(blob) % 2 and blob.isalnum():
            try:
                blob = bytes.fromhex(blob.decode("ascii"))  # hex text, from DuckDB and text columns
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
        fields: dict[str, object] = {}
        end = at
        for number, entry in enumerate(self.entries[key]):
            size = self._size((key[0], entry.kind), entry)
            start = end
            if entry.offset is not None or number == 0:
                start = at + (entry.offset or 0)
            elif size:
                start = -(-end // min(size, 8)) * min(size, 8)
            count = 1
            if entry.flags & IS_ARRAY == FIXED and entry.kind not in STRINGS:
                count = min(entry.length, self.left)
            values = [self._value(key[0], entry, payload, start + n * size, depth) for n in range(count)]
            fields[entry.name or str(number)] = values if count != 1 or entry.flags & IS_ARRAY else values[0]
            end = start + count * size
        return fields

    def _size(self, key: tuple[int, int], entry: _Entry) -> int:
        if entry.kind in CODES:
            return struct.calcsize(CODES[entry.kind])
        if entry.kind in STRINGS:
            return entry.length * STRINGS[entry.kind][1]
        return self.sizes.get(key, 0)

    def _value(self, domain: int, entry: _Entry, payload: bytes, at: int, depth: int) -> object:
        self.left -= 1
        variable = entry.flags & IS_ARRAY not in (0, FIXED)
        if entry.flags & ELSEWHERE or (variable and entry.kind not in STRINGS) or at > len(payload):
            return None
        if entry.kind in STRINGS:
            name, width = STRINGS[entry.kind]
            if entry.length and not variable:
                text = payload[at : at + entry.length * width]
            else:
                text = payload[at:]
            return text[: len(text) // width * width].decode(name, errors="replace").split("\0")[0]
        if (domain, entry.kind) in self.entries:
            if self.left <= 0 or depth >= DEEPEST:
                return None
            return self._read((domain, entry.kind), payload, at, depth + 1)
        code = CODES.get(entry.kind)
        if code is None or at + struct.calcsize(code) > len(payload):
            return None
        value: int | float = struct.unpack_from(f"<{code}", payload, at)[0]
        if entry.kind == REGISTERED:
            return self.strings.get(int(value), value)
        return value


def read_payloads(tables: NsysTables, events: pl.DataFrame, strings: pl.DataFrame) -> pl.Series:
    """Reads the payload of each event as JSON; null if there is none."""
    present = [name for name in COLUMNS if name in events.columns]
    sources = [pl.col(name).cast(pl.String) for name in (*WHOLE, *REAL) if name in present]
    if "binaryData" in present:
        blobs = events["binaryData"].drop_nulls().unique()
        layouts = _read_layouts(tables, strings)
        decoded = [layouts.decode(blob) for blob in blobs]
        texts = [None if value is None else json.dumps(value, allow_nan=True) for value in decoded]
        by_blob = dict(zip(blobs.to_list(), texts, strict=True))
        sources.insert(0, pl.col("binaryData").replace_strict(by_blob, default=None, return_dtype=pl.String))
    if "jsonTextId" in present:
        registered = pl.col("jsonTextId").replace_strict(
            strings["id"], strings["value"], default=None, return_dtype=pl.String
        )
        sources.insert(0, registered)
    if "jsonText" in present:
        sources.insert(0, pl.col("jsonText"))
    if not sources:
        return pl.Series("payload", [None], pl.String).new_from_index(0, events.height)
    return events.select(payload=pl.coalesce(sources))["payload"]


def _read_layouts(tables: NsysTables, strings: pl.DataFrame) -> _Layouts:
    """Reads all layouts; each process registers its own, but layouts with the same id are equal."""
    whole = pl.Int64
    sizes = tables.read("NVTX_PAYLOAD_SCHEMAS", {"domainId": whole, "schemaId": whole, "payloadSize": whole})
    columns: dict[str, type[pl.DataType]] = {"domainId": whole, "schemaId": whole, "idx": whole, "flags": whole}
    columns |= {"type": whole, "name": pl.String, "arrayOrUnionDetail": whole, "offset": whole}
    entries = tables.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns).unique(["domainId", "schemaId", "idx"])
    layouts = _Layouts(strings=dict(strings.drop_nulls().iter_rows()))
    for domain, layout, _, flags, kind, name, length, offset in entries.sort("domainId", "schemaId", "idx").iter_rows():
        entry = _Entry(flags or 0, kind or 0, name or "", max(length or 0, 0), offset)
        layouts.entries.setdefault((domain, layout), []).append(entry)
    layouts.sizes = {(domain, layout): max(size or 0, 0) for domain, layout, size in sizes.iter_rows()}
    return layouts
