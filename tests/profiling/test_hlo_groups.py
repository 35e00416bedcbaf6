from __future__ import annotations

import pytest

from nightjar_profiling.protos import hlo_pb2
from nightjar_profiling.readers.hlo_groups import read_group_size


def listed_in_instruction() -> hlo_pb2.HloInstruction:
    one = hlo_pb2.HloInstruction()
    for ids in ([0, 1, 2, 3], [4, 5, 6, 7]):
        one.replica_groups.add(replica_ids=ids)
    return one


def listed_in_device_list() -> hlo_pb2.HloInstruction:
    one = hlo_pb2.HloInstruction()
    one.collective_device_list.replica_groups.add(replica_ids=[0, 2, 4, 6])
    return one


def iota() -> hlo_pb2.HloInstruction:
    one = hlo_pb2.HloInstruction()
    one.collective_device_list.iota_replica_group_list.num_replica_groups = 2
    one.collective_device_list.iota_replica_group_list.num_devices_per_group = 4
    return one


def mesh_axes() -> hlo_pb2.HloInstruction:
    """As JAX 0.10.2 writes a gather over the first two of three axes."""
    one = hlo_pb2.HloInstruction()
    for size in (2, 2, 3):
        one.mesh_axes_replica_group_list.mesh.axes.add(size=size)
    for index in (0, 1):
        one.mesh_axes_replica_group_list.axes.add(mesh_axis_index=index)
    return one


@pytest.mark.parametrize("form", [listed_in_instruction, listed_in_device_list, iota, mesh_axes])
def test_every_form_of_stating_the_groups_gives_their_size(form: object) -> None:
    assert callable(form)
    assert read_group_size(form()) == 4


def test_a_part_of_a_mesh_axis_counts_with_the_size_of_the_part() -> None:
    one = hlo_pb2.HloInstruction()
    one.mesh_axes_replica_group_list.mesh.axes.add(size=8)
    one.mesh_axes_replica_group_list.axes.add(mesh_axis_index=0).sub_axis_info.size = 2
    assert read_group_size(one) == 2


def test_an_instruction_that_is_no_collective_has_no_group() -> None:
    assert read_group_size(hlo_pb2.HloInstruction(opcode="add")) is None
