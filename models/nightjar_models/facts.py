"""What did the compiler emit? Counts and bytes of the optimized HLO, exact and without noise.

In: a compiled program. Out: the `facts` of a `nightjar.run/1` document. They are read from the serialized HLO module,
not from its text, whose form changes between versions.

Source: openxla/xla, xla/service/hlo.proto and xla/xla_data.proto, whose field numbers `_MESSAGES` repeats for the few
fields that are read here; protobuf skips the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Tally = dict[str, int]

_MESSAGES = {
    "Shape": {"element_type": (2, "int32"), "dimensions": (3, "int64*"), "tuple_shapes": (4, "Shape*")},
    "Instruction": {
        "opcode": (2, "string"),
        "shape": (3, "Shape"),
        "fusion_kind": (11, "string"),
        "custom_call_target": (28, "string"),
    },
    "Computation": {"instructions": (2, "Instruction*")},
    "Module": {"name": (1, "string"), "computations": (3, "Computation*")},
}

# Bits of xla.PrimitiveType by number; tuples, tokens and opaque values hold no bytes of their own.
_BITS = {
    **dict.fromkeys((30, 31), 1),  # S1 U1
    **dict.fromkeys((26, 27), 2),  # S2 U2
    **dict.fromkeys((21, 22, 32), 4),  # S4 U4 F4E2M1FN
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 8),  # PRED S8 U8 and the 8-bit floats
    **dict.fromkeys((3, 7, 10, 16), 16),  # S16 U16 F16 BF16
    **dict.fromkeys((4, 8, 11), 32),  # S32 U32 F32
    **dict.fromkeys((5, 9, 12, 15), 64),  # S64 U64 F64 C64
    18: 128,  # C128
}

_COLLECTIVES = {
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
}


def read_facts(program: str, compiled: jax.stages.Compiled) -> dict[str, Any]:
    """The facts of a compiled program.

    Args:
        program: the name under which they are compared from night to night.
        compiled: what `lowered.compile()` returned.
    """
    executable: Any = compiled.runtime_executable()
    modules = [parse_module(module.as_serialized_hlo_module_proto()) for module in executable.hlo_modules()]
    cost = compiled.cost_analysis()
    flops = cost.get("flops") if cost else None
    return {
        "program": program,
        **tally_module(modules),
        "flops": None if flops is None or flops < 0 else float(flops),
        "memory": read_memory(compiled),
    }


def parse_module(data: bytes) -> Any:
    """A serialized `xla.HloModuleProto`, as a message with the fields of `_MESSAGES`."""
    return _module_class().FromString(data)


def tally_module(modules: Iterable[Any]) -> dict[str, dict[str, Tally]]:
    """Counts and output bytes by opcode, fusion kind, custom-call target and collective, over all computations."""
    found: dict[str, dict[str, Tally]] = {"opcodes": {}, "fusions": {}, "custom_calls": {}, "collectives": {}}
    for instruction in _instructions(modules):
        size = size_bytes(instruction.shape)
        _add(found["opcodes"], instruction.opcode, size)
        if instruction.opcode == "fusion":
            _add(found["fusions"], instruction.fusion_kind, size)
        elif instruction.opcode == "custom-call":
            _add(found["custom_calls"], instruction.custom_call_target, size)
        # The `-start` of an asynchronous pair also yields its operands and context: the `-done` has the result alone.
        # A pair made of `async-start` wraps the collective, which is met in the wrapped computation.
        collective = instruction.opcode.removesuffix("-done")
        if collective in _COLLECTIVES:
            _add(found["collectives"], collective, size)
    return {kind: dict(sorted(tallies.items())) for kind, tallies in found.items()}


def size_bytes(shape: Any) -> int:
    """The bytes of a value, those of all parts of a tuple; sub-byte elements are packed."""
    bits: int = math.prod(shape.dimensions) * _BITS.get(shape.element_type, 0)
    return (bits + 7) // 8 + sum(size_bytes(part) for part in shape.tuple_shapes)


def read_memory(compiled: jax.stages.Compiled) -> dict[str, int | None]:
    """What the compiler reserved, in bytes; None where the backend does not tell."""
    stats = compiled.memory_analysis()
    names = ("argument_size", "output_size", "alias_size", "temp_size", "generated_code_size", "peak_memory")
    values = {name: getattr(stats, f"{name}_in_bytes", None) for name in names}
    return {f"{name.removesuffix('_size').removesuffix('_memory')}_bytes": value for name, value in values.items()}


def _instructions(modules: Iterable[Any]) -> Iterator[Any]:
    for module in modules:
        for computation in module.computations:
            yield from computation.instructions


def _add(tallies: dict[str, Tally], name: str, size: int) -> None:
    tally = tallies.setdefault(name, {"count": 0, "bytes": 0})
    tally["count"] += 1
    tally["bytes"] += size


def _module_class() -> Any:
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {"int32": field.TYPE_INT32, "int64": field.TYPE_INT64, "string": field.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name="hlo_subset.proto", package="nightjar", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            one = described.field.add(name=name, number=number, label=label)
            if kind in scalars:
                one.type = scalars[kind]
            else:
                one.type, one.type_name = field.TYPE_MESSAGE, f".nightjar.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("nightjar.Module"))
