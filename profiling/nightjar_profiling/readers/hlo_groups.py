"""How many devices take part in a collective?

In: an HLO instruction. Out: the size of its groups. There are four forms of stating the groups: lists of ids (up to
2024 in the instruction, then in its device list), an iota of groups, and axes of a mesh (2026).

Source: openxla/xla:xla/service/hlo.proto, openxla/xla:xla/xla_data.proto
"""

from __future__ import annotations

from math import prod

from nightjar_profiling.protos import hlo_pb2


def read_group_size(one: hlo_pb2.HloInstruction) -> int | None:
    """Devices in a group; of groups that differ the largest; None where the instruction does not say."""
    listed = one.collective_device_list.replica_groups or one.replica_groups
    if listed:
        return max(len(group.replica_ids) for group in listed) or None
    iota = one.collective_device_list.iota_replica_group_list.num_devices_per_group
    return iota or _mesh_size(one.mesh_axes_replica_group_list)


def _mesh_size(groups: hlo_pb2.MeshReplicaGroups) -> int | None:
    sizes = [axis.size for axis in groups.mesh.axes]
    if not groups.axes or any(axis.mesh_axis_index >= len(sizes) for axis in groups.axes):
        return None
    return prod(axis.sub_axis_info.size or sizes[axis.mesh_axis_index] for axis in groups.axes)
