"""What the host attached to its NVTX ranges is in the table of the ranges."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.readers.nsys.nsys_export import read_parquet_folder, read_sqlite
from tests.profiling.nsys_sqlite_builder import Row, SqliteBuilder, training_export

NCCL, PAIR, LABEL = 16777220, 16777300, 4294967297
ENTRY: Row = {"flags": None, "description": None, "arrayOrUnionDetail": None}


def blob(layout: int, payload: bytes, domain: int = 1) -> bytes:
    return struct.pack("<IIQQQ", domain, 0, layout, len(payload), 32 + len(payload)) + payload


def add_layout(built: SqliteBuilder, layout: int, size: int, *entries: Row) -> None:
    """Registers a layout, as each process does."""
    for _process in range(2):
        built.add("NVTX_PAYLOAD_SCHEMAS", domainId=1, schemaId=layout, name=None, payloadSize=size)
        for number, entry in enumerate(entries):
            built.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=layout, idx=number, **{**ENTRY, **entry})


def payload_export() -> SqliteBuilder:
    """Ranges with payloads of every kind, the name of each the JSON that is expected; the training run has none."""
    built = training_export()
    communicator: Row = {"type": 18, "name": "NCCL communicator ID", "offset": None}
    add_layout(built, NCCL, 16, communicator, {"type": 22, "name": "Message size [bytes]", "offset": 8})
    rank: Row = {"type": 5, "name": "rank", "offset": None}
    add_layout(built, PAIR, 16, rank, {"type": 20, "name": "loss", "offset": None})  # the second is aligned
    text: Row = {"type": 75, "name": "text", "offset": None, "arrayOrUnionDetail": 6}
    array: Row = {"type": 13, "name": "shape", "offset": 6, "flags": 1 << 4, "arrayOrUnionDetail": 2}
    inner: Row = {"type": PAIR, "name": "inner", "offset": 16}
    string: Row = {"type": 80, "name": "module", "offset": 32}
    add_layout(built, LABEL, 40, text, array, inner, string, {"type": 99, "name": "later", "offset": 39})
    pair_bytes = struct.pack("<ixxxxd", -3, 0.5)
    label_bytes = struct.pack("<6shh6x", b"dp\0dp\0", 4, -1) + pair_bytes + struct.pack("<Q", built.string("jit_step"))
    payloads: dict[str, Row] = {
        '{"NCCL communicator ID": 18446744073709551615, "Message size [bytes]": 4096}': {
            "binaryData": blob(NCCL, struct.pack("<QQ", 2**64 - 1, 4096))
        },
        '{"rank": -3, "loss": 0.5}': {"binaryData": blob(PAIR, pair_bytes)},
        '{"text": "dp", "shape": [4, -1], "inner": {"rank": -3, "loss": 0.5}, "module": "jit_step", "later": null}': {
            "binaryData": blob(LABEL, label_bytes)
        },
        "7": {"int64Value": 7},
        "2.5": {"doubleValue": 2.5},
        '{"a": 1}': {"jsonText": '{"a": 1}'},
        '{"b": 2}': {"jsonTextId": built.string('{"b": 2}')},
    }
    for number, (expected, payload) in enumerate(payloads.items()):
        built.range(expected, 10_000 + 10 * number, 10_005 + 10 * number, payload=payload)
    built.range("null", 11_000, 11_005, payload={"binaryData": blob(NCCL, b"short")})
    built.range("null", 11_010, 11_015, payload={"binaryData": blob(123, bytes(64))})
    built.range("null", 11_020, 11_025, payload={"binaryData": b"damaged"})
    return built


@pytest.mark.parametrize("form", ["sqlite", "parquet", "hexadecimal"])
def test_payloads_of_every_kind_are_json_whatever_the_form_of_the_export(tmp_path: Path, form: str) -> None:
    built = payload_export()
    if form == "hexadecimal":
        for row in built.tables["NVTX_EVENTS"]:
            if isinstance(row.get("binaryData"), bytes):
                row["binaryData"] = bytes(row["binaryData"]).hex()  # type: ignore[arg-type]
    if form == "parquet":
        raw = read_parquet_folder(built.write_parquet(tmp_path / "a_pqtdir"))
    else:
        raw = read_sqlite(built.write(tmp_path / "a.sqlite", {"NVTX_EVENTS": "NVTX_EVENTS_V3"}))
    marked = raw.tables["ranges"].filter(raw.tables["ranges"]["start_ns"] >= 10_000)
    assert marked.height == 10
    for expected, payload in marked.select("name", "payload").iter_rows():
        assert (None if payload is None else json.loads(payload)) == json.loads(expected)
    assert raw.tables["ranges"]["payload"].head(4).null_count() == 4


def test_without_payloads_the_column_is_null(tmp_path: Path) -> None:
    ranges = read_sqlite(training_export().write(tmp_path / "a.sqlite")).tables["ranges"]
    assert ranges["payload"].null_count() == ranges.height


def test_a_layout_that_holds_itself_ends(tmp_path: Path) -> None:
    built = SqliteBuilder().launch("gemm", 10, 200, 260)
    again: Row = {"type": NCCL, "name": "again", "offset": 0, "flags": 1 << 4, "arrayOrUnionDetail": 1 << 40}
    add_layout(built, NCCL, 0, again, {**again, "name": "too"})
    built.range("a", 0, 9, payload={"binaryData": blob(NCCL, bytes(8))})
    payload = read_sqlite(built.write(tmp_path / "a.sqlite")).tables["ranges"]["payload"][0]
    assert payload.startswith('{"again": [{"again": [')


ENTRIES = st.fixed_dictionaries(
    {
        "type": st.sampled_from([1, 5, 18, 20, 42, 75, 77, 80, 99, 128, NCCL, PAIR]),
        "name": st.none() | st.text("ab", max_size=3),
        "flags": st.none() | st.integers(0, 1 << 10),
        "arrayOrUnionDetail": st.none() | st.integers(-3, 1 << 40),
        "offset": st.none() | st.integers(0, 1 << 40),
    }
)


@given(st.lists(ENTRIES, max_size=5), st.lists(ENTRIES, max_size=3), st.binary(max_size=64), st.integers(0, 64))
@pytest.mark.slow
def test_any_layout_with_any_bytes_is_a_payload_or_none(
    tmp_path_factory: pytest.TempPathFactory, first: list[Row], second: list[Row], payload: bytes, size: int
) -> None:
    built = SqliteBuilder().launch("gemm", 10, 200, 260)
    add_layout(built, NCCL, size, *first)
    add_layout(built, PAIR, size, *second)
    built.range("a", 0, 9, payload={"binaryData": blob(NCCL, payload)}).range(
        "b", 0, 9, payload={"binaryData": payload}
    )
    ranges = read_sqlite(built.write(tmp_path_factory.mktemp("any") / "a.sqlite")).tables["ranges"]
    for value in ranges["payload"]:
        assert value is None or isinstance(json.loads(value), dict)
