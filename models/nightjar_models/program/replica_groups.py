"""Replica groups and message sizes of collectives.

In: a collective instruction. Out: its kind, its largest group as device numbers, and the size of its message as
nccl-tests counts it: the data of every rank after an all-gather, all-reduce or all-to-all, and before a reduce-scatter.

Source: openxla/xla, xla/xla_data.proto (replica groups as lists, as an iota, as axes of a mesh); NVIDIA/nccl-tests,
doc/PERFORMANCE.md
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nightjar_models.measuring.facts import COLLECTIVES
from nightjar_models.measuring.hlo import size_bytes
from nightjar_models.program.module import Module


def collective_kind(instruction: Any) -> str | None:
    """`all-gather` of `all-gather` and `all-gather-start`; None of any other instruction, and of `-done`."""
    kind: str = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        return kind
    return None


def message_bytes(module: Module, instruction: Any, group_size: int) -> int:
    """The bytes of the message of one run of a collective."""
    sent = sum(size_bytes(operand.shape) for operand in module.operands(instruction))
    if collective_kind(instruction) == "all-gather":
        return sent * group_size
    return sent


def names_group(instruction: Any) -> bool:
    """Whether a collective names its devices in a form that `read_group` knows."""
    listed = (
        instruction.collective_device_list.replica_groups
        or instruction.replica_groups
        or instruction.source_target_pairs
    )
    iota = (
        instruction.collective_device_list.iota.devices_per_group
        or instruction.iota_replica_group_list.devices_per_group
    )
    return bool(listed or iota or instruction.mesh_axes_replica_group_list.axes)


def read_group(instruction: Any, devices: int) -> tuple[int, ...]:
    """The devices of the largest group; all devices if the instruction names none."""
    pairs = instruction.source_target_pairs
    if pairs:  # a permutation: the pair that is farthest apart counts
        return max(((pair.source, pair.target) for pair in pairs), key=lambda pair: abs(pair[0] - pair[1]))
    listed = instruction.collective_device_list.replica_groups or instruction.replica_groups
    if listed:
        largest = max(listed, key=lambda group: len(group.replica_ids))
        return tuple(largest.replica_ids) or tuple(range(devices))
    within = instruction.collective_device_list.iota
    iota = within if within.devices_per_group else instruction.iota_replica_group_list  # from 2026
    if iota.devices_per_group:
        ids = _reorder(iota).reshape(iota.groups, iota.devices_per_group)
        return tuple(int(number) for number in ids[0])
    axes = instruction.mesh_axes_replica_group_list
    if axes.axes:
        return _mesh_group(axes)
    return tuple(range(devices))


def _reorder(form: Any) -> Any:
    """Device numbers counted over `reshape_dims`, read with the axes in the order of `transpose_perm`."""
    ids = np.arange(math.prod(form.reshape_dims)).reshape(tuple(form.reshape_dims))
    return ids.transpose(tuple(form.transpose_perm) or None).ravel()


def _mesh_group(groups: Any) -> tuple[int, ...]:
    """The first device of a mesh and the devices that differ from it along the axes, or along parts of them."""
    mesh = groups.mesh
    sizes = [axis.size for axis in mesh.axes]
    devices = np.zeros(1, int)
    for axis in groups.axes:
        part, index = axis.sub_axis_info, axis.mesh_axis_index
        inner = math.prod(sizes[index + 1 :])
        count = part.size or sizes[index]
        below = 1
        if part.size:
            below = sizes[index] // (part.pre_size * part.size)
        devices = (devices[:, None] + np.arange(count) * inner * below).ravel()
    if mesh.device_ids:
        devices = np.array(mesh.device_ids)[devices]
    elif mesh.reordering.reshape_dims:
        devices = _reorder(mesh.reordering)[devices]
    return tuple(int(number) for number in devices)
