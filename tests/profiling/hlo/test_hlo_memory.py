import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.hlo.hlo_memory import ALLOCATED, FREED, SHARED, read_memory_over_time, read_peak
from nightjar_profiling.protos import hlo_pb2
from tests.places import RECORDED

RECORDED_SCAN = RECORDED / "ahead_scan.hlo.pb.xz"
Events = list[tuple[int, int, int]]


def assigned(sizes: dict[int, int], events: Events, size: int) -> hlo_pb2.HloProto:
    """A program with one temporary allocation; value n is that of instruction `v<n>`."""
    proto = hlo_pb2.HloProto()
    body = proto.hlo_module.computations.add(name="entry", id=1)
    for number, bytes_ in sizes.items():
        body.instructions.add(name=f"v{number}", opcode="add", id=number)
        buffer = proto.buffer_assignment.logical_buffers.add(id=number, size=bytes_)
        buffer.defined_at.instruction_id = number
    allocation = proto.buffer_assignment.buffer_allocations.add(index=4, size=size)
    for number, bytes_ in sizes.items():
        allocation.assigned.add(logical_buffer_id=number, size=bytes_)
    trace = proto.buffer_assignment.heap_simulator_traces.add(buffer_allocation_index=2)  # XLA renumbers afterwards
    for kind, number, canonical in events:
        trace.events.add(kind=kind, buffer_id=number, share_with_canonical_id=canonical)
    return proto


def peak(proto: hlo_pb2.HloProto) -> dict[str | None, int]:
    return {one.instruction: one.size_bytes for one in read_peak(proto)}


def test_a_value_that_shares_memory_keeps_it_alive_and_adds_none() -> None:
    events = [(ALLOCATED, 1, 0), (SHARED, 2, 1), (FREED, 1, 0), (ALLOCATED, 3, 0), (FREED, 2, 0), (FREED, 3, 0)]
    assert peak(assigned({1: 40, 2: 40, 3: 50}, events, size=90)) == {"v1": 40, "v3": 50}


def test_unexplained_memory_is_a_buffer_without_an_instruction() -> None:
    proto = assigned({1: 40}, [(ALLOCATED, 1, 0)], size=64)
    assert peak(proto) == {"v1": 40, None: 24}
    proto.buffer_assignment.buffer_allocations[0].color = 5  # the host's memory, not the device's
    assert (peak(proto), read_memory_over_time(proto)) == ({}, [])


def test_memory_over_time_follows_the_schedule_and_keeps_its_peak_of_which_values_live_then_are_named() -> None:
    events = [(ALLOCATED, 1, 0), (ALLOCATED, 2, 0), (FREED, 1, 0), (ALLOCATED, 3, 0), (FREED, 2, 0), (FREED, 3, 0)]
    proto = assigned({1: 10, 2: 70, 3: 30}, events, size=100)
    assert peak(proto) == {"v2": 70, "v3": 30}
    moments = [(moment.instruction, moment.live_bytes) for moment in read_memory_over_time(proto)]
    assert moments == [("v1", 10), ("v2", 80), ("v1", 70), ("v3", 100), ("v2", 30), ("v3", 0)]
    assert [moment.live_bytes for moment in read_memory_over_time(proto, most=2)] == [80, 100]
    assert read_memory_over_time(hlo_pb2.HloProto()) == []


def test_a_program_without_buffer_assignment_has_no_buffers() -> None:
    assert read_peak(hlo_pb2.HloProto()) == ()


def test_values_of_a_compiled_program_at_its_peak_fill_the_temporary_allocation() -> None:
    proto = hlo_pb2.HloProto.FromString(lzma.decompress(RECORDED_SCAN.read_bytes()))
    (trace,) = proto.buffer_assignment.heap_simulator_traces
    trace.buffer_allocation_index += 90  # the recorded program is too small to be renumbered
    temps = [one for one in read_peak(proto) if one.kind == "temp"]
    named = [one.size_bytes for one in temps if one.instruction is not None]
    assert len(named) > 10
    assert sum(named) > 0.98 * sum(one.size_bytes for one in temps)


def test_each_trace_has_its_own_part_of_an_allocation_that_was_merged() -> None:
    proto = assigned({1: 10, 2: 70}, [(ALLOCATED, 1, 0), (FREED, 1, 0)], size=80)
    other = proto.buffer_assignment.heap_simulator_traces.add(buffer_allocation_index=3)
    other.events.add(kind=ALLOCATED, buffer_id=2)
    assert peak(proto) == {"v1": 10, "v2": 70}


@pytest.mark.parametrize(
    ("mark", "kind"),
    [("is_entry_computation_parameter", "parameter"), ("is_constant", "constant"), ("maybe_live_out", "output")],
)
def test_all_but_temporary_values_are_live_for_the_whole_run(mark: str, kind: str) -> None:
    proto = assigned({1: 6, 2: 8}, [], size=8)
    setattr(proto.buffer_assignment.buffer_allocations[0], mark, True)
    proto.buffer_assignment.buffer_allocations.add(index=5, size=7, is_thread_local=True)  # on a thread's stack
    (found,) = read_peak(proto)
    assert (found.instruction, found.kind, found.size_bytes) == ("v2", kind, 8)


@given(
    sizes=st.dictionaries(st.integers(1, 6), st.integers(1, 100), min_size=1),
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7), st.integers(1, 7)), max_size=20),
    size=st.integers(700, 1000),
)
def test_the_sizes_always_sum_to_the_allocation(sizes: dict[int, int], events: Events, size: int) -> None:
    found = read_peak(assigned(sizes, events, size))
    assert sum(one.size_bytes for one in found) == size
    assert all(one.size_bytes > 0 for one in found)
