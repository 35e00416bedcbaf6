"""Protobuf reader for the few fields of `xla.HloProto` that facts and estimates need.

In: a serialized `xla.HloModuleProto` or `xla.HloProto`. Out: protobuf messages with the fields of `_MESSAGES`; protobuf
skips the others, so that a module of a newer compiler is read as far as it is known.

Source: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto, whose field numbers the table repeats.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from nightjar_models.errors import InputError

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Shape": {"element_type": (2, "int32"), "dimensions": (3, "int64*"), "tuple_shapes": (4, "Shape*")},
    "Metadata": {
        "op_name": (2, "string"),
        "source_file": (3, "string"),
        "source_line": (4, "int32"),
        "stack_frame_id": (15, "int32"),
    },
    "ConvolutionDimensions": {"kernel_output_feature_dimension": (4, "int64")},
    "DotDimensions": {"lhs_contracting_dimensions": (1, "int64*")},
    "ReplicaGroup": {"replica_ids": (1, "int64*")},
    "Iota": {
        "groups": (1, "int64"),
        "devices_per_group": (2, "int64"),
        "reshape_dims": (3, "int64*"),
        "transpose_perm": (4, "int32*"),
    },
    "DeviceList": {"replica_groups": (1, "ReplicaGroup*"), "iota": (2, "Iota")},
    "MeshAxis": {"name": (1, "string"), "size": (2, "int64")},
    "Reordering": {"reshape_dims": (1, "int64*"), "transpose_perm": (2, "int32*")},
    "MeshAxes": {"axes": (1, "MeshAxis*"), "device_ids": (2, "int64*"), "reordering": (3, "Reordering")},
    "SubAxis": {"pre_size": (1, "int64"), "size": (2, "int64")},
    "MeshAxisRef": {"mesh_axis_index": (1, "int64"), "sub_axis_info": (2, "SubAxis")},
    "MeshGroups": {"mesh": (1, "MeshAxes"), "axes": (2, "MeshAxisRef*")},
    "Instruction": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "shape": (3, "Shape"),
        "metadata": (7, "Metadata"),
        "literal": (8, "bytes"),
        "parameter_number": (9, "int64"),
        "fusion_kind": (11, "string"),
        "tuple_index": (13, "int64"),
        "dimensions": (14, "int64*"),
        "window": (15, "bytes"),
        "convolution_dimension_numbers": (16, "ConvolutionDimensions"),
        "slice_dimensions": (17, "bytes*"),
        "padding_config": (21, "bytes"),
        "custom_call_target": (28, "string"),
        "dot_dimension_numbers": (30, "DotDimensions"),
        "gather_dimension_numbers": (33, "bytes"),
        "id": (35, "int64"),
        "operand_ids": (36, "int64*"),
        "called_computation_ids": (38, "int64*"),
        "backend_config": (43, "bytes"),
        "scatter_dimension_numbers": (48, "bytes"),
        "replica_groups": (49, "ReplicaGroup*"),
        "source_target_pairs": (52, "SourceTarget*"),
        "comparison_direction": (63, "string"),
        "collective_device_list": (87, "DeviceList"),
        "iota_replica_group_list": (92, "Iota"),
        "mesh_axes_replica_group_list": (93, "MeshGroups"),
    },
    "SourceTarget": {"source": (1, "int64"), "target": (2, "int64")},
    "Computation": {
        "name": (1, "string"),
        "instructions": (2, "Instruction*"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
    },
    "FileLocation": {"file_name_id": (1, "int32"), "function_name_id": (2, "int32"), "line": (3, "int32")},
    "StackFrame": {"file_location_id": (1, "int32"), "parent_frame_id": (2, "int32")},
    "StackFrameIndex": {
        "file_names": (1, "string*"),
        "function_names": (2, "string*"),
        "file_locations": (3, "FileLocation*"),
        "stack_frames": (4, "StackFrame*"),
    },
    "IdSequence": {"instruction_ids": (1, "int64*")},
    "ScheduleEntry": {"key": (1, "int64"), "value": (2, "IdSequence")},
    "Schedule": {"sequences": (1, "ScheduleEntry*")},
    "Module": {
        "name": (1, "string"),
        "computations": (3, "Computation*"),
        "id": (5, "int64"),
        "entry_computation_id": (6, "int64"),
        "schedule": (7, "Schedule"),
        "stack_frame_index": (17, "StackFrameIndex"),
    },
    "BufferLocation": {"instruction_name": (2, "string"), "instruction_id": (4, "int64")},
    "LogicalBuffer": {"id": (1, "int64"), "size": (2, "int64"), "defined_at": (3, "BufferLocation")},
    "Assigned": {"logical_buffer_id": (1, "int64"), "offset": (2, "int64"), "size": (3, "int64")},
    "Allocation": {
        "index": (1, "int64"),
        "size": (2, "int64"),
        "is_thread_local": (3, "bool"),
        "color": (8, "int64"),
        "is_entry_computation_parameter": (5, "bool"),
        "maybe_live_out": (7, "bool"),
        "assigned": (9, "Assigned*"),
        "is_constant": (12, "bool"),
    },
    "HeapEvent": {"kind": (1, "int32"), "buffer_id": (2, "int64"), "share_with_canonical_id": (5, "int64")},
    "HeapTrace": {"events": (1, "HeapEvent*"), "buffer_allocation_index": (3, "int64")},
    "BufferAssignment": {
        "logical_buffers": (1, "LogicalBuffer*"),
        "buffer_allocations": (3, "Allocation*"),
        "heap_simulator_traces": (4, "HeapTrace*"),
    },
    "Hlo": {"hlo_module": (1, "Module"), "buffer_assignment": (3, "BufferAssignment")},
}

# Bits of xla.PrimitiveType by number; tuples, tokens and opaque values hold no bytes of their own.
_BITS = {
    **dict.fromkeys((30, 31), 1),  # S1 U1
    **dict.fromkeys((26, 27), 2),  # S2 U2
    **dict.fromkeys((21, 22, 32), 4),  # S4 U4 F4E2M1FN
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33, 35, 36), 8),  # PRED S8 U8, floats of 8 bits and of 6
    **dict.fromkeys((3, 7, 10, 16), 16),  # S16 U16 F16 BF16
    **dict.fromkeys((4, 8, 11), 32),  # S32 U32 F32
    **dict.fromkeys((5, 9, 12, 15), 64),  # S64 U64 F64 C64
    18: 128,  # C128
}


def parse_module(data: bytes) -> Any:
    """A serialized `xla.HloModuleProto`, as a message with the fields of `_MESSAGES`."""
    return _classes()["Module"].FromString(data)


def pack_module(module: Any) -> Any:
    """A module as an `Hlo` message without a buffer assignment."""
    return _classes()["Hlo"](hlo_module=module)


def parse_hlo(data: bytes, where: str) -> Any:
    """A serialized `xla.HloProto`: a module and, if the compiler dumped it, its buffer assignment.

    Args:
        data: the protobuf.
        where: source of the bytes, for error messages.
    """
    try:
        return _classes()["Hlo"].FromString(data)
    except DecodeError as error:
        raise InputError(f"{where}: not an HLO protobuf: {error}.") from None


def count_elements(shape: Any) -> int:
    """The elements of an array, or of all arrays of a tuple."""
    if shape.tuple_shapes:
        return sum(count_elements(part) for part in shape.tuple_shapes)
    if shape.element_type in _BITS:
        return math.prod(shape.dimensions)
    return 0


def size_bytes(shape: Any) -> int:
    """The bytes of a value, summed over the parts of a tuple; sub-byte elements are packed."""
    bits: int = math.prod(shape.dimensions) * _BITS.get(shape.element_type, 0)
    return (bits + 7) // 8 + sum(size_bytes(part) for part in shape.tuple_shapes)


@functools.cache
def _classes() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "int32": field.TYPE_INT32,
        "int64": field.TYPE_INT64,
        "string": field.TYPE_STRING,
        "bytes": field.TYPE_BYTES,
        "bool": field.TYPE_BOOL,
    }
    file = descriptor_pb2.FileDescriptorProto(name="hlo_subset.proto", package="nightjar", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            described_field = described.field.add(name=name, number=number, label=label)
            if kind in scalars:
                described_field.type = scalars[kind]
            else:
                described_field.type = field.TYPE_MESSAGE
                described_field.type_name = f".nightjar.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nightjar.{name}")) for name in _MESSAGES}
