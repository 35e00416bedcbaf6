"""The columnar reader against one that reads event by event, on traces that hypothesis makes and damages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_profiling.bytes import wire
from nightjar_profiling.bytes.wire import WireError, find_run, read_varint
from nightjar_profiling.errors import InputError
from nightjar_profiling.protos import xplane_pb2
from nightjar_profiling.readers.xplane import xplane_events
from nightjar_profiling.readers.xplane.xplane import read_raw
from nightjar_profiling.readers.xplane.xplane_events import decode_events, double_of
from tests.profiling.builders import training_trace
from tests.profiling.xplane_reference import read_ops

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.one_of(st.integers(0, 3), st.integers(0, 2**20), INT64)
VALUES = st.one_of(
    st.tuples(st.just("double_value"), st.floats(allow_nan=False)),
    st.tuples(st.just("uint64_value"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("int64_value"), SMALL),
    st.tuples(st.just("str_value"), st.binary(max_size=70)),
    st.tuples(st.just("bytes_value"), st.binary(max_size=5)),
    st.tuples(st.just("ref_value"), st.integers(0, 300)),
)
STATS = st.lists(st.tuples(st.integers(0, 4), VALUES), max_size=5)
EVENTS = st.lists(st.tuples(st.one_of(st.integers(0, 2), SMALL), SMALL, SMALL, STATS), max_size=30)
WANTED = {1: "one", 2: "two", 3: "three"}
Facts = tuple[int, int, int, dict[str, tuple[int, Any]]]


def build(events: list[Any]) -> list[xplane_pb2.XEvent]:
    made = []
    for metadata_id, offset, duration, stats in events:
        event = xplane_pb2.XEvent(metadata_id=metadata_id, offset_ps=offset, duration_ps=duration)
        for number, (field, value) in stats:
            event.stats.add(metadata_id=number, **{field: value})
        made.append(event)
    return made


def facts_of(event: xplane_pb2.XEvent) -> Facts:
    fields = {one.name: one.number for one in xplane_pb2.XStat.DESCRIPTOR.fields}
    kinds = [(stat.metadata_id, str(stat.WhichOneof("value")), stat) for stat in event.stats]
    stats = {WANTED[n]: (fields[kind], getattr(stat, kind)) for n, kind, stat in kinds if n in WANTED}
    return event.metadata_id, event.offset_ps, event.duration_ps, stats


def decode(messages: list[bytes]) -> list[Facts]:
    data = np.frombuffer(b"".join(messages), np.uint8)
    sizes = np.array([len(one) for one in messages], np.int64)
    ends = np.cumsum(sizes)
    found = decode_events(data, ends - sizes, ends, WANTED)

    def value_of(kind: int, bits: int) -> Any:
        if kind == xplane_events.DOUBLE:
            return double_of(bits)
        if kind in (xplane_events.TEXT, xplane_events.BINARY):
            return found.texts[bits]
        return bits % 2**64 if kind in (xplane_events.UINT64, xplane_events.REFERENCE) else bits

    rows = zip(found.metadata_id.tolist(), found.offset_ps.tolist(), found.duration_ps.tolist(), strict=True)
    return [
        (
            *row,
            {
                name: (int(stat.kind[n]), value_of(int(stat.kind[n]), int(stat.value[n])))
                for name, stat in found.stats.items()
                if stat.kind[n]
            },
        )
        for n, row in enumerate(rows)
    ]


@settings(deadline=None)
@given(EVENTS, st.integers(1, 12))
def test_columns_hold_what_each_event_says(events: list[Any], times: int) -> None:
    messages = build(events) * times  # repeated: what is alike is decoded at once
    assert decode([one.SerializeToString() for one in messages]) == [facts_of(one) for one in messages]


@settings(deadline=None)
@given(EVENTS, st.data())
def test_fields_that_nobody_declared_are_skipped(events: list[Any], data: st.DataObject) -> None:
    unknown = st.sampled_from([b"\x28\x07", b"\x59" + bytes(8), b"\x65" + bytes(4), b"\x62\x03abc", b"\xf8\x7f\x01"])
    made = build(events)
    messages = [data.draw(unknown) + one.SerializeToString() + data.draw(unknown) for one in made]
    assert decode(messages) == [facts_of(one) for one in made]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(16, 64))
def test_a_long_run_is_found_as_a_short_one_is(contents: list[bytes], segment: int) -> None:
    data = b"".join(bytes([0x22, len(one)]) + one for one in contents)
    padded = np.frombuffer(data + bytes(512), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "LARGEST_SEGMENT_BYTES", segment)
        patch.setattr(wire, "SHORT_RUN_BYTES", 0)
        patch.setattr(wire, "WINDOW_BYTES", 16)
        starts, ends, position = find_run(padded, 0, len(data), 0x22)
    assert position == len(data)
    assert [data[a:b] for a, b in zip(starts, ends, strict=True)] == contents


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60), st.binary(max_size=400))
def test_a_run_ends_where_another_field_begins(contents: list[bytes], rest: bytes) -> None:
    run = b"".join(bytes([0x22, len(one)]) + one for one in contents)
    data = np.frombuffer(run + b"\x50\x07" + rest + bytes(512), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "LARGEST_SEGMENT_BYTES", 48)
        patch.setattr(wire, "SHORT_RUN_BYTES", 0)
        patch.setattr(wire, "WINDOW_BYTES", 16)
        starts, _, position = find_run(data, 0, len(data) - 512, 0x22)
    assert position == len(run)
    assert len(starts) == len(contents)


def encode(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + encode(number >> 7)


def test_a_run_of_millions_of_bytes_is_found_whole() -> None:
    sizes = np.random.default_rng(1).integers(0, 300, 40_000)
    sizes[::4_000] = [127, 128, 16_383, 16_384, 16_390, 32_767, 32_768, 70_000, 0, 16_511]
    parts = [b"\x22" + encode(int(n)) + b"\x22\x02" * (n // 2) + b"\x08" * (n % 2) for n in sizes]
    data = b"".join(parts)
    assert len(data) > wire.SHORT_RUN_BYTES
    run = np.frombuffer(data, np.uint8)
    starts, ends, position = find_run(run, 0, len(data), 0x22)
    assert (ends - starts).tolist() == sizes.tolist()
    assert position == len(data)
    assert wire._walk_segments(run, 0, len(data), 0x22) is not None, "what the slow walk has to redo is read right, too"


def test_a_number_of_any_length_is_read() -> None:
    assert read_varint(b"\xff" * 9 + b"\x01", 0, 10) == (2**64 - 1, 10)
    for data in (b"\xff" * 11, b"\x80", b""):
        with pytest.raises(WireError, match="unterminated varint"):
            read_varint(data, 0, len(data))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_files_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    trace = bytearray(training_trace().space.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(trace)))
        trace[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path_factory.mktemp("damaged") / "bad.xplane.pb"
    path.write_bytes(trace[: data.draw(st.integers(0, len(trace)))] if data.draw(st.booleans()) else trace)
    rows, message = 0, path.name
    try:
        rows = sum(table.height for table in read_raw(path).tables.values())
    except InputError as error:
        message = str(error)
    assert path.name in message
    assert rows <= path.stat().st_size


HOST = b"\x12\x09/host:CPU"


@pytest.mark.parametrize(
    "plane",
    [
        HOST + b"\x1a\x05\x22\xff\xff\xff\x7f",  # an event that is longer than the file
        HOST + b"\x1a\x04\x22\x02\x08\xff",  # a number that does not end
        HOST + b"\x1a\x04\x22\x02\x0a\x00",  # a metadata id that is text
        HOST + b"\x1a\x05\x22\x03\x22\x01\x15",  # a stat whose value is cut off
        HOST + b"\x1a\x02\x20\x01",  # an event that is a number
        HOST + b"\x1a\x04\x22\x02\x20\x01",  # a stat that is a number
        HOST + b"\x22\x02\x08\x80",  # event metadata that is cut off
        HOST + b"\x0b" * 1000,  # groups inside groups
        HOST + b"\x00\x00",  # field number 0
    ],
)
def test_what_no_profiler_writes_ends_in_an_error_that_names_the_file(tmp_path: Path, plane: bytes) -> None:
    path = tmp_path / "bad.xplane.pb"
    path.write_bytes(b"\x0a" + bytes([len(plane) & 127 | 128, len(plane) >> 7]) + plane)
    with pytest.raises(InputError, match=r"bad\.xplane\.pb: not an XSpace protobuf.*Hint"):
        read_raw(path)


def test_a_plane_longer_than_any_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.xplane.pb"
    path.write_bytes(b"\x0a" + b"\xff" * 8 + b"\x7f")
    with pytest.raises(InputError, match="the message ends at 10"):
        read_raw(path)


def test_ids_as_large_as_a_number_can_be_take_no_memory(tmp_path: Path) -> None:
    trace = training_trace()
    plane = trace.plane("/host:CPU")
    plane.event_metadata[2**62].name = b"huge"
    plane.stat_metadata[2**62].name = b"huge"
    plane.lines[0].events[0].metadata_id = 2**62
    path = trace.write(tmp_path)
    assert read_raw(path).tables["ops"]["kernel"][0] == "huge"
    assert next(row[4] for row in read_ops(path)) == "huge"
