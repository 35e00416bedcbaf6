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

add { x = f32[] parameter(0)
  ROOT sum = f32[] add(x, x) }

ENTRY main {
  a = f32[8,4] parameter(0)
  z = f32[] constant(2)
  at = s32[3,1] constant({ {0}, {1}, {2} })
  iota = f32[8,8] all-gather(a), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={1}
  mesh = f32[8,8] all-gather(a), replica_groups=mesh['q'=2,'r'=4], device_ids=([2,4]T(1,0)) {'r':(1)2}, dimensions={1}
  ids = f32[8,8] all-gather(a), replica_groups=mesh['q'=2], device_ids=(1,0) {'q'}, dimensions={1}
  moved = f32[8,4] collective-permute(a), source_target_pairs={{5,6}}
  part = f32[2,4] slice(a), slice={[0:2], [0:4]}
  padded = f32[9,4] pad(a, z), padding=1_0x0_0
  less = pred[8,4] compare(a, a), direction=LT
  rows = f32[3,4] gather(a, at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1,4}
  ROOT added = f32[8,4] scatter(a, at, rows), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
}"""
ORDER = "reshape_dims: {} reshape_dims: {} transpose_perm: 1 transpose_perm: 0"
MESH = 'dimensions: 1 mesh_axes_replica_group_list { mesh { axes { name: "q" size: 2 }'
# What an instruction has besides its name, opcode, shape, operands and number; `...` are bytes that nobody reads.
FIELDS = {
    **{"z": "literal: ...", "at": "literal: ...", "padded": "padding_config: ..."},
    "iota": f"dimensions: 1 iota_replica_group_list {{ groups: 2 devices_per_group: 4 {ORDER.format(4, 2)} }}",
    "mesh": f'{MESH} axes {{ name: "r" size: 4 }} reordering {{ {ORDER.format(2, 4)} }} }} '
    "axes { mesh_axis_index: 1 sub_axis_info { pre_size: 1 size: 2 } } }",
    "ids": f"{MESH} device_ids: 1 device_ids: 0 }} axes {{ }} }}",
    "moved": "source_target_pairs { source: 5 target: 6 }",
    "part": "slice_dimensions: ... slice_dimensions: ...",
    "less": 'comparison_direction: "LT"',
    "rows": "gather_dimension_numbers: ...",
    "added": "called_computation_ids: 0 scatter_dimension_numbers: ...",
}


def test_fields_that_only_models_reads_are_those_that_xla_wrote() -> None:
    """tests/contract/test_hlo.py compares the others with those of profiling."""
    module = parse_module(FROM_TEXT(TEXT).as_serialized_hlo_module_proto())
    main = module.computations[1]
    order = {sequence.key: [*sequence.value.instruction_ids] for sequence in module.schedule.sequences}[main.id]
    instructions = {one.name: one for one in main.instructions}
    assert order == [instructions[name].id for name in re.findall(r"(\w+) = ", TEXT)[2:]]
    for one in main.instructions:
        for name in ("name", "opcode", "id", "operand_ids", "shape", "metadata"):
            one.ClearField(name)
    texts = {name: text_format.MessageToString(one, as_one_line=True) for name, one in instructions.items()}
    written = {name: re.sub(r'"(?:[^"\\]*\\.)+[^"\\]*"', "...", text) for name, text in texts.items() if text}
    assert written == FIELDS


NARROW = [name for name in dir(ml_dtypes) if name.startswith(("int", "uint", "float", "bfloat"))]
if not hasattr(xla_client.PrimitiveType, "F6E2M3FN"):  # before JAX 0.12
    NARROW = [name for name in NARROW if not name.startswith("float6_")]
WIDE = ["bool", *(f"{kind}int{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64))]
WIDE += ["float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", [*NARROW, *WIDE])
def test_an_array_has_as_many_bytes_as_xla_reserves_for_it(name: str) -> None:
    with jax.enable_x64(True):
        compiled: Any = jax.jit(lambda x: x).lower(np.zeros((1000, 8), getattr(ml_dtypes, name, name))).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    parameter = parse_module(module.as_serialized_hlo_module_proto()).computations[-1].instructions[0]
    assert size_bytes(parameter.shape) == compiled.memory_analysis().argument_size_in_bytes
