import pytest

from nightjar_profiling.analyses.communication.clocks import estimate_clocks, on_common_clock
from nightjar_profiling.analyses.communication.collectives import add_waits, find_stragglers, make_collectives
from nightjar_profiling.capture_folder.tables import SCHEMAS
from nightjar_profiling.hlo.collective_kinds import Collective, find_collectives
from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.protos import hlo_pb2
from tests.profiling.builders import Hlo, hlo_proto
from tests.profiling.tabled import RUN, collective, op, tables

BYTES = 24  # a builder's array: 2 by 3 of float32


def grouped(proto: hlo_pb2.HloProto, size: int = 4) -> Program:
    for computation in proto.hlo_module.computations:
        for one in computation.instructions:
            one.replica_groups.add(replica_ids=range(size))
    return read_program(proto.SerializeToString(), 1, "test")


def single(opcode: str) -> Collective:
    entry = [Hlo("parameter.1"), Hlo("it", operands=("parameter.1",), opcode=opcode)]
    return find_collectives(grouped(hlo_proto({"entry": entry})))["it"]


@pytest.mark.parametrize(
    ("opcode", "message_bytes", "algorithm_bytes", "bus_bytes"),
    [
        ("all-gather-start", BYTES, 4 * BYTES, 3 * BYTES),
        ("reduce-scatter", BYTES / 4, BYTES, 3 / 4 * BYTES),
        ("all-reduce", BYTES, BYTES, 6 / 4 * BYTES),
        ("all-to-all", BYTES, BYTES, 3 / 4 * BYTES),
        ("collective-permute-start", BYTES, BYTES, BYTES),
        ("collective-broadcast", BYTES, BYTES, BYTES),
    ],
)
def test_bandwidths_follow_nccl(opcode: str, message_bytes: float, algorithm_bytes: float, bus_bytes: float) -> None:
    found = single(opcode)
    assert found.size_factor is not None
    assert found.bus_factor is not None
    assert found.message_bytes == message_bytes
    assert found.size_factor * found.message_bytes == algorithm_bytes
    assert found.bus_factor * found.size_factor * found.message_bytes == bus_bytes


def test_a_permute_is_between_two_devices_whatever_its_groups() -> None:
    assert single("collective-permute").group_size == 2


def test_a_collective_inside_an_async_start_is_found_there() -> None:
    inner = [Hlo("parameter.1"), Hlo("reduce-scatter.1", operands=("parameter.1",))]
    entry = [Hlo("parameter.2"), Hlo("async-start.1", operands=("parameter.2",), calls=("inner",))]
    found = find_collectives(grouped(hlo_proto({"inner": inner, "entry": entry})))
    assert found["async-start.1"] == found["reduce-scatter.1"]


@pytest.mark.parametrize(
    ("opcode", "on_host", "kind", "message_bytes"),
    [
        ("dynamic-slice", ("whole",), "host-to-device", BYTES),
        ("dynamic-slice", ("it",), "device-to-host", BYTES),
        ("dynamic-update-slice", ("whole", "it"), "device-to-host", 2 * BYTES),
        ("dynamic-update-slice", ("part",), "host-to-device", 2 * BYTES),
    ],
)
def test_a_slice_into_the_memory_of_the_host_is_a_copy_between_device_and_host(
    opcode: str, on_host: tuple[str, ...], kind: str, message_bytes: int
) -> None:
    inner = [Hlo("whole", opcode="parameter"), Hlo("part", opcode="parameter")]
    inner.append(Hlo("it", operands=("whole", "part"), opcode=opcode))
    entry = [Hlo("parameter.2"), Hlo("fusion.1", operands=("parameter.2",), calls=("inner",))]
    proto = hlo_proto({"inner": inner, "entry": entry})
    for one in proto.hlo_module.computations[0].instructions:
        if one.name in on_host:
            one.shape.layout.memory_space = 5
        if one.name == "part":
            one.shape.dimensions[0] *= 2
    found = find_collectives(grouped(proto))["fusion.1"]
    assert (found.kind, found.message_bytes, found.group_size) == (kind, message_bytes, 1)


def test_a_program_that_computes_alone_has_no_collectives() -> None:
    program = grouped(hlo_proto({"entry": [Hlo("parameter.1"), Hlo("add.1", operands=("parameter.1",))]}))
    assert make_collectives(tables(ops=[op("add.1", 0, 5)]).ops, {1: program}).is_empty()


def reduce_program(size: int = 2) -> dict[int, Program]:
    entry = [Hlo("parameter.1"), Hlo("all-reduce.1", operands=("parameter.1",))]
    return {1: grouped(hlo_proto({"entry": entry}), size)}


def test_kernels_of_one_thunk_are_one_collective() -> None:
    ops = [op("all-reduce.1", 0, 4, thunk=5), op("all-reduce.1", 10, 2, thunk=5)]
    (row,) = make_collectives(tables(ops=ops).ops, reduce_program()).rows(named=True)
    assert (row["kind"], row["start_ns"], row["duration_ns"]) == ("all-reduce", 0, 12)
    assert (row["message_bytes"], row["group_size"], row["wait_ns"]) == (BYTES, 2, None)
    assert row["algbw_gb_per_s"] == row["busbw_gb_per_s"] == BYTES / 12


def test_the_rank_that_comes_last_waits_for_nobody() -> None:
    ops = [op("all-reduce.1", 0, 40), op("all-reduce.1", 1030, 10, rank=1)]  # clocks need not agree
    found = make_collectives(tables(ops=ops).ops, reduce_program())
    assert found.select("rank", "wait_ns").rows() == [(0, 30), (1, 0)]


def test_a_collective_that_took_no_time_has_no_bandwidth() -> None:
    found = make_collectives(tables(ops=[op("all-reduce.1", 0, 0)]).ops, reduce_program())
    assert found["busbw_gb_per_s"].to_list() == [None]


def test_a_capture_without_collectives_has_no_stragglers_and_no_clocks() -> None:
    assert find_stragglers(tables(ops=[op("add.1", 0, 1)])).is_empty()
    assert estimate_clocks(tables().collectives).is_empty()


def test_the_clock_of_a_rank_is_found_by_the_ends_of_common_collectives() -> None:
    rows = [
        collective("all-reduce.1", 100 * n + start + skew, 90 - start, rank=rank, execution=n)
        for n in range(5)
        for rank, start, skew in ((0, 0, 0), (1, 7 * n, 5000))
    ]
    clocks = estimate_clocks(tables(collectives=rows).collectives)
    assert clocks.select("rank", "offset_ns", "residual_ns").rows() == [(0, 0, 0), (1, -5000, 0)]
    moved = on_common_clock(tables(collectives=rows).collectives, clocks)
    ends = (moved["start_ns"] + moved["duration_ns"]).to_list()
    assert ends[0::2] == ends[1::2]
    assert on_common_clock(moved, clocks.with_columns(residual_ns=5000)).equals(moved)  # no more than jitter


def test_devices_without_a_common_collective_are_not_aligned() -> None:
    rows = [collective("all-reduce.1", 0, 5), collective("all-reduce.2", 0, 5, rank=1)]
    assert estimate_clocks(tables(collectives=rows).collectives).is_empty()


def test_a_device_that_shares_no_group_with_the_first_is_aligned_by_one_that_does() -> None:
    clocks_ns = (0, 100, 2000, 30000)  # pairs along one axis of a mesh and along the other: 0-1, 2-3, 0-2, 1-3
    rows = [
        collective(name, 50 * execution + clocks_ns[rank], 10, rank=rank, execution=execution, group=group)
        for name, groups in (("all-reduce.1", (0, 0, 1, 1)), ("all-reduce.2", (0, 1, 0, 1)))
        for rank, group in enumerate(groups)
        for execution in range(3)
    ]
    found = estimate_clocks(tables(collectives=rows).collectives)
    assert found.select("rank", "offset_ns", "residual_ns").rows() == [
        (0, 0, 0),
        (1, -100, 0),
        (2, -2000, 0),
        (3, -30000, 0),
    ]


def test_the_rank_that_all_others_wait_for_is_the_straggler() -> None:
    rows = [
        collective("all-reduce.1", 0, 10 if rank == 2 else 50 + rank, rank=rank, execution=n, group_size=3)
        for n in range(4)
        for rank in range(3)
    ]
    found = find_stragglers(tables(collectives=rows))
    worst = found.row(0, named=True)
    assert (worst["rank"], worst["last_fraction"], worst["stability"], worst["executions"]) == (2, 1.0, 1.0, 4)
    assert worst["late_ns"] == 41
    assert worst["caused_wait_ns"] == 4 * (40 + 41)
    assert found["caused_wait_ns"].sum() == worst["caused_wait_ns"]


def test_ranks_that_are_last_in_turns_are_not_stable_stragglers() -> None:
    rows = [
        collective("all-reduce.1", 0, 10 if rank == n % 2 else 50, rank=rank, execution=n)
        for n in range(4)
        for rank in range(2)
    ]
    assert find_stragglers(tables(collectives=rows))["stability"].to_list() == [0.5, 0.5]


def test_waiting_is_unknown_for_collectives_in_several_unidentified_groups() -> None:
    rows = [collective("all-reduce.1", 0, 10 * (rank + 1), rank=rank) for rank in range(4)]  # groups of two
    found = add_waits(tables(collectives=rows).collectives)
    assert found["wait_ns"].to_list() == [None] * 4
    assert find_stragglers(tables(collectives=found.rows(named=True))).is_empty()
    whole = [row | {"group_size": 4} for row in rows]
    assert add_waits(tables(collectives=whole).collectives)["wait_ns"].to_list() == [0, 10, 20, 30]


def test_devices_of_one_host_are_not_taken_for_the_group_of_which_others_are_elsewhere() -> None:
    rows = [collective("all-reduce.1", 0, 10 + device, device=device) for device in range(2)]
    ids = [{"group": group, "device_id": group + host} for group in (0, 1) for host in (0, 2048)]
    groups = tables(groups=[{"program_id": 1, "instruction": "all-reduce.1", **one} for one in ids]).groups
    found = add_waits(tables(collectives=rows).collectives, groups)
    assert found["wait_ns"].to_list() == [None, None]
    assert estimate_clocks(found.select(list(SCHEMAS["collectives"]))).is_empty()


def test_a_rank_that_was_late_only_during_compilation_is_not_a_straggler() -> None:
    rows = [
        collective("all-reduce.1", 0, took, rank=rank, execution=n)
        for n, both in enumerate([(10_000, 10), (10, 40), (10, 50)])
        for rank, took in enumerate(both)
    ]
    runs = [{**RUN, "rank": rank, "execution": n, "start_ns": n, "duration_ns": 1} for n in range(3) for rank in (0, 1)]
    worst = find_stragglers(tables(collectives=rows, executions=runs)).row(0, named=True)
    assert (worst["rank"], worst["late_ns"], worst["stability"], worst["caused_wait_ns"]) == (0, 35, 1.0, 70)
