from typing import Any

import pytest

from nightjar_profiling.hlo.hlo_groups import name_devices, read_group_size, read_groups
from nightjar_profiling.protos import hlo_pb2

IOTA = {"num_replica_groups": 2, "num_devices_per_group": 4}
FORMS: dict[str, dict[str, Any]] = {
    "listed": {"replica_groups": [{"replica_ids": [0, 1, 2, 3]}, {"replica_ids": [4, 5, 6, 7]}]},
    "listed by devices": {
        "collective_device_list": {"replica_groups": [{"replica_ids": [0, 2, 4, 6]}, {"replica_ids": [1, 3, 5]}]}
    },
    "iota by devices": {"collective_device_list": {"iota_replica_group_list": IOTA}},
    # JAX 0.10.2's encodings of a reduction over the first of two axes, and of a gather over the first two of three
    "iota": {"iota_replica_group_list": {**IOTA, "iota_reshape_dims": [4, 2], "iota_transpose_perm": [1, 0]}},
    "mesh axes": {
        "mesh_axes_replica_group_list": {
            "mesh": {"axes": [{"size": size} for size in (2, 2, 3)]},
            "axes": [{"mesh_axis_index": index} for index in (0, 1)],
        }
    },
}


def make(form: str) -> hlo_pb2.HloInstruction:
    return hlo_pb2.HloInstruction(**FORMS[form])


@pytest.mark.parametrize("form", FORMS)
def test_every_encoding_of_groups_gives_their_size(form: str) -> None:
    assert read_group_size(make(form)) == 4


def test_a_part_of_a_mesh_axis_counts_with_the_size_of_the_part() -> None:
    one = make("mesh axes")
    one.mesh_axes_replica_group_list.mesh.axes[1].size = 8
    one.mesh_axes_replica_group_list.axes[1].sub_axis_info.size = 4
    assert (read_group_size(one), read_groups(one)) == (8, ())


def test_every_encoding_gives_the_groups() -> None:
    assert read_groups(make("listed")) == ((0, 1, 2, 3), (4, 5, 6, 7))
    two = make("iota by devices")
    two.collective_device_list.iota_replica_group_list.iota_reshape_dims.extend([4, 2])
    two.collective_device_list.iota_replica_group_list.iota_transpose_perm.extend([1, 0])
    assert read_groups(two) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert read_groups(make("iota")) == read_groups(two)
    assert read_groups(make("iota by devices")) == ()  # no dimensions: damaged
    assert read_groups(make("mesh axes")) == ((0, 3, 6, 9), (1, 4, 7, 10), (2, 5, 8, 11))


def test_an_axis_that_is_not_there_gives_no_groups() -> None:
    mesh, order = make("mesh axes"), make("iota")
    mesh.mesh_axes_replica_group_list.axes[1].mesh_axis_index = 3
    order.iota_replica_group_list.iota_transpose_perm[0] = 2
    assert (read_group_size(mesh), read_groups(mesh), read_groups(order)) == (None, (), ())


@pytest.mark.parametrize(("dimensions", "groups"), [([-2, -4, 1], 2), ([2, 4], -2), ([4, 1 << 16], 1 << 16), ([], 2)])
def test_groups_of_a_damaged_file_are_unknown(dimensions: list[int], groups: int) -> None:
    one = make("iota by devices")
    found = one.collective_device_list.iota_replica_group_list
    found.num_replica_groups = groups
    found.num_devices_per_group = 4 if groups > 0 else -4
    found.iota_reshape_dims.extend(dimensions)
    found.iota_transpose_perm.extend(range(len(dimensions)))
    assert read_groups(one) == ()


def test_groups_are_named_by_the_devices_that_the_program_is_assigned_to() -> None:
    assignment = hlo_pb2.DeviceAssignment(replica_count=1, computation_count=4)
    for device in (0, 4096, 2048, 6144):
        assignment.computation_devices.add(replica_device_ids=[device])
    assert name_devices(((0, 1), (2, 3)), assignment) == ((0, 4096), (2048, 6144))
    assert name_devices(((0, 1), (2, 4)), assignment) == ()  # no such device
    assert name_devices(((0, 1, 2, 3),), assignment) == ()  # one group: nothing to tell apart
    assert name_devices(((0, 1), (2, 3)), hlo_pb2.DeviceAssignment()) == ((0, 1), (2, 3))
    replicas = hlo_pb2.DeviceAssignment(replica_count=4, computation_count=1)
    replicas.computation_devices.add(replica_device_ids=[0, 4096, 2048, 6144])
    assert name_devices(((0, 1), (2, 3)), replicas) == ((0, 4096), (2048, 6144))
    assignment.replica_count = 2
    assert name_devices(((0, 1), (2, 3)), assignment) == ()  # numbers of replicas or of partitions


def test_an_instruction_that_is_not_a_collective_has_no_group() -> None:
    one = hlo_pb2.HloInstruction(opcode="add")
    assert read_group_size(one) is None
    one.replica_groups.add()  # an empty one stands for all devices, however many there are
    assert read_group_size(one) is None
