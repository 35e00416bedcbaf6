"""Device groups of collectives.

In: an HLO instruction. Out: the size of its groups, and the groups. HLO has five encodings: lists of ids (in the
instruction up to 2024, then in its device list), an iota of groups (in the device list, from 2026 in the instruction),
and mesh axes (2026).

Source: openxla/xla:xla/service/hlo.proto, openxla/xla:xla/xla_data.proto
"""

from __future__ import annotations

from math import prod

import numpy as np

from nightjar_profiling.protos import hlo_pb2

LARGEST = 1 << 17  # devices; a damaged file may contain any number


def read_group_size(instruction: hlo_pb2.HloInstruction) -> int | None:
    """Devices in a group (the largest, if groups differ); None if the instruction has no groups."""
    listed = instruction.collective_device_list.replica_groups or instruction.replica_groups
    if listed:
        return max(len(group.replica_ids) for group in listed) or None
    return _iota(instruction).num_devices_per_group or _mesh_size(instruction.mesh_axes_replica_group_list)


def _iota(instruction: hlo_pb2.HloInstruction) -> hlo_pb2.CollectiveDeviceList.Iota:
    listed = instruction.collective_device_list.iota_replica_group_list
    if listed.num_devices_per_group:
        return listed
    return instruction.iota_replica_group_list


def _mesh_size(groups: hlo_pb2.MeshReplicaGroups) -> int | None:
    sizes = [axis.size for axis in groups.mesh.axes]
    if not groups.axes or any(axis.mesh_axis_index >= len(sizes) for axis in groups.axes):
        return None
    return prod(axis.sub_axis_info.size or sizes[axis.mesh_axis_index] for axis in groups.axes)


def read_groups(instruction: hlo_pb2.HloInstruction) -> tuple[tuple[int, ...], ...]:
    """The groups, as replica or partition numbers; empty if the instruction has none, or only part of them."""
    listed = instruction.collective_device_list.replica_groups or instruction.replica_groups
    if listed:
        return tuple(tuple(group.replica_ids) for group in listed)
    iota = _iota(instruction)
    if iota.num_devices_per_group:
        dimensions, order = list(iota.iota_reshape_dims), list(iota.iota_transpose_perm)
        size = iota.num_replica_groups * iota.num_devices_per_group
        return _spread(dimensions, order, iota.num_devices_per_group, size)
    mesh = instruction.mesh_axes_replica_group_list
    sizes, axes = [axis.size for axis in mesh.mesh.axes], [axis.mesh_axis_index for axis in mesh.axes]
    if not axes or max(axes) >= len(sizes) or any(axis.sub_axis_info.size for axis in mesh.axes):
        return ()
    order = [*(axis for axis in range(len(sizes)) if axis not in axes), *axes]
    return _spread(sizes, order, prod(sizes[axis] for axis in axes), prod(sizes))


def _spread(dimensions: list[int], order: list[int], per_group: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Device numbers of a mesh of these dimensions, with its axes in this order, divided into groups."""
    valid = (
        prod(dimensions) == size and min(dimensions, default=0) > 0 and sorted(order) == list(range(len(dimensions)))
    )
    if not 0 < size <= LARGEST or per_group < 1 or not valid:
        return ()
    numbers = np.arange(size).reshape(dimensions).transpose(order).reshape(-1, per_group)
    return tuple(tuple(group) for group in numbers.tolist())


def name_devices(
    groups: tuple[tuple[int, ...], ...], assignment: hlo_pb2.DeviceAssignment
) -> tuple[tuple[int, ...], ...]:
    """The groups as device ids.

    Empty for a single group, and unless the numbers are all replicas or all partitions, each once: in a program with
    both, the numbers of the instruction are ambiguous.
    """
    ids = [number for part in assignment.computation_devices for number in part.replica_device_ids]
    count = len(ids) or sum(map(len, groups))
    both = assignment.replica_count > 1 and assignment.computation_count > 1
    if len(groups) < 2 or both or sorted(number for group in groups for number in group) != list(range(count)):
        return ()
    if not ids:
        return groups
    return tuple(tuple(ids[number] for number in group) for group in groups)
