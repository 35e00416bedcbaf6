"""Fields of HLO messages are read as XLA writes them, and types have the bits that XLA gives them."""

import re
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from google.protobuf import text_format
from jaxlib import xla_client

from nightjar_models.measuring.hlo import parse_module, size_bytes

FROM_TEXT: Any = xla_client.hlo.hlo_module_from_text  # type: ignore[attr-defined]
TEXT = """HloModule m, is_scheduled=true, num_partitions=8

add { x = f32[] parameter(0), metadata={op_name="jit(f)/x" source_file="f.py" source_line=7}
  ROOT sum = f32[] add(x, x) }

ENTRY main {
  k = f32[1,4,6] parameter(0)
  a = f32[8,4] parameter(1)
  z = f32[] constant(2)
  at = s32[3,1] constant({ {0}, {1}, {2} })
  list = f32[8,4] all-reduce(a), replica_groups={{0,1},{2,3}}, to_apply=add
  iota = f32[8,8] all-gather(a), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={1}
  mesh = f32[8,8] all-gather(a), replica_groups=mesh['q'=2,'r'=4], device_ids=([2,4]T(1,0)) {'r':(1)2}, dimensions={1}
  ids = f32[8,8] all-gather(a), replica_groups=mesh['q'=2], device_ids=(1,0) {'q'}, dimensions={1}
  moved = f32[8,4] collective-permute(a), source_target_pairs={{5,6}}
  product = f32[4,4] dot(a, a), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  wide = f32[2,8,4] broadcast(a), dimensions={1,2}
  filtered = f32[2,8,6] convolution(wide, k), window={size=1}, dim_labels=b0f_0io->b0f
  part = f32[2,4] slice(a), slice={[0:2], [0:4]}
  padded = f32[9,4] pad(a, z), padding=1_0x0_0
  less = pred[8,4] compare(a, a), direction=LT
  called = (f32[8,4], s8[16]) custom-call(a), custom_call_target="mine", backend_config="given"
  element = s8[16] get-tuple-element(called), index=1
  rows = f32[3,4] gather(a, at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1,4}
  added = f32[8,4] scatter(a, at, rows), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  ROOT fused = f32[] fusion(z), kind=kLoop, calls=add
}"""
MESH = 'mesh { axes { name: "q" size: 2 }'
# What each instruction has besides its name, opcode, shape, operands and number; `...` are bytes that nobody reads.
FIELDS = {
    "a": "parameter_number: 1",
    "z": "literal: ...",
    "at": "literal: ...",
    "list": "called_computation_ids: 0 collective_device_list { replica_groups { replica_ids: 0 replica_ids: 1 } "
    "replica_groups { replica_ids: 2 replica_ids: 3 } }",
    "iota": "dimensions: 1 iota_replica_group_list { groups: 2 devices_per_group: 4 reshape_dims: 4 reshape_dims: 2 "
    "transpose_perm: 1 transpose_perm: 0 }",
    "mesh": f'dimensions: 1 mesh_axes_replica_group_list {{ {MESH} axes {{ name: "r" size: 4 }} reordering {{ '
    "reshape_dims: 2 reshape_dims: 4 transpose_perm: 1 transpose_perm: 0 } } "
    "axes { mesh_axis_index: 1 sub_axis_info { pre_size: 1 size: 2 } } }",
    "ids": f"dimensions: 1 mesh_axes_replica_group_list {{ {MESH} device_ids: 1 device_ids: 0 }} axes {{ }} }}",
    "moved": "source_target_pairs { source: 5 target: 6 }",
    "product": "dot_dimension_numbers { lhs_contracting_dimensions: 0 }",
    "wide": "dimensions: 1 dimensions: 2",
    "filtered": "window: ... convolution_dimension_numbers { kernel_output_feature_dimension: 2 }",
    "part": "slice_dimensions: ... slice_dimensions: ...",
    "padded": "padding_config: ...",
    "less": 'comparison_direction: "LT"',
    "called": 'custom_call_target: "mine" backend_config: "given"',
    "element": "tuple_index: 1",
    "rows": "gather_dimension_numbers: ...",
    "added": "called_computation_ids: 0 scatter_dimension_numbers: ...",
    "fused": 'fusion_kind: "kLoop" called_computation_ids: 0',
}


def render(message: Any) -> str:
    return re.sub(r'"(?:[^"\\]*\\.)+[^"\\]*"', "...", text_format.MessageToString(message, as_one_line=True))


def test_the_fields_of_a_module_are_those_that_xla_wrote() -> None:
    module = parse_module(FROM_TEXT(TEXT).as_serialized_hlo_module_proto())
    add, main = module.computations
    assert (module.name, module.entry_computation_id, add.name, main.name, main.id) == ("m", 1, "add", "main", 1)
    assert render(add.instructions[0].metadata) == 'op_name: "jit(f)/x" source_file: "f.py" source_line: 7'
    order = {sequence.key: [*sequence.value.instruction_ids] for sequence in module.schedule.sequences}[main.id]
    instructions = {one.name: one for one in main.instructions}
    assert order == [instructions[name].id for name in re.findall(r"(\w+) = ", TEXT)[2:]]
    assert (main.root_id, add.root_id) == (instructions["fused"].id, add.instructions[1].id)
    assert [*instructions["added"].operand_ids] == [instructions[name].id for name in ("a", "at", "rows")]
    assert render(instructions["called"].shape) == (
        "element_type: 13 tuple_shapes { element_type: 11 dimensions: 8 dimensions: 4 } "
        "tuple_shapes { element_type: 2 dimensions: 16 }"
    )
    for one in main.instructions:
        for name in ("name", "opcode", "id", "operand_ids", "shape", "metadata"):
            one.ClearField(name)
    assert {name: text for name, one in instructions.items() if (text := render(one))} == FIELDS


NARROW = [name for name in dir(ml_dtypes) if name.startswith(("int", "uint", "float", "bfloat"))]
WIDE = ["bool", *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64))]
WIDE += ["float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", [*NARROW, *WIDE])
def test_an_array_has_as_many_bytes_as_xla_reserves_for_it(name: str) -> None:
    with jax.enable_x64(True):
        compiled: Any = jax.jit(lambda x: x).lower(np.zeros((1000, 8), getattr(ml_dtypes, name, name))).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    parameter = parse_module(module.as_serialized_hlo_module_proto()).computations[-1].instructions[0]
    assert size_bytes(parameter.shape) == compiled.memory_analysis().argument_size_in_bytes
