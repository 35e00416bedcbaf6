"""Bytes and operations of an instruction, and of a step beside the model's own formula and XLA's cost analysis."""

import lzma
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.xla_client import PrimitiveType

from nightjar_models.measuring.facts import read_facts
from nightjar_models.measuring.hlo import _classes, pack_module, parse_hlo, parse_module
from nightjar_models.presets import find_preset
from nightjar_models.program.cost import Cost, count_cost
from nightjar_models.program.kernels import count_flops, count_flops_on_gpu
from nightjar_models.program.module import read_module
from nightjar_models.training.flops import masked_flops, train_flops
from tests.places import RECORDED

F32, S32, S8, PRED = 11, 4, 2, 1
WORKSPACE = ((F32, 4), (S8, 1000))


def shape(parts: Any) -> Any:
    make = _classes()["Shape"]
    if isinstance(parts[0], tuple):
        return make(tuple_shapes=[shape(part) for part in parts])
    return make(element_type=parts[0], dimensions=parts[1:])


@pytest.mark.parametrize(
    ("opcode", "operands", "result", "moved"),
    [
        ("add", [(F32, 10), (F32, 10)], (F32, 10), 3 * 40),
        ("slice", [(F32, 100)], (F32, 10), 2 * 40),
        ("dynamic-slice", [(F32, 100), (S32,)], (F32, 10), 2 * 40 + 4),
        ("gather", [(F32, 100), (S32, 5)], (F32, 5), 2 * 20 + 20),
        ("dynamic-update-slice", [(F32, 100), (F32, 10), (S32,)], (F32, 100), 2 * 40),
        ("dynamic-update-slice", [(F32,), (F32,)], (F32,), 2 * 4),  # of a scalar, which has no index
        ("dynamic-update-slice", [(F32, 100)], (F32, 100), 2 * 400),  # of a damaged program
        ("scatter", [(F32, 100), (S32, 5), (F32, 5)], (F32, 100), 2 * 20),
        ("copy-start", [(F32, 10)], ((F32, 10), (F32, 10), (S32,)), 2 * 40),
        ("custom-call __cublas$lt$matmul", [(F32, 8), (F32, 8)], WORKSPACE, 16 + 2 * 32),
        ("custom-call mine", [(F32, 8), (F32, 8)], WORKSPACE, 16 + 1000 + 2 * 32),
    ],
)
def test_an_instruction_moves_what_it_reads_and_writes(opcode: str, operands: Any, result: Any, moved: int) -> None:
    assert cost(opcode, operands, result).bytes == moved


def test_arithmetic_is_counted_for_every_floating_point_type_of_xla_and_for_truth_values() -> None:
    wanted = {kind.value for kind in PrimitiveType if kind.name.startswith(("F", "BF", "C"))} | {F32, PRED}
    plain = {kind.value for kind in PrimitiveType if kind.name not in ("PRIMITIVE_TYPE_INVALID", "TUPLE")}
    assert {kind for kind in plain if cost("add", [(kind, 10), (kind, 10)], (kind, 10)).flops == 10} == wanted


def cost(opcode: str, operands: Any, result: Any) -> Cost:
    classes = _classes()
    kind, _, target = opcode.partition(" ")
    given = [
        classes["Instruction"](id=number, name=f"p{number}", opcode="parameter", shape=shape(one))
        for number, one in enumerate(operands, 1)
    ]
    ids = [one.id for one in given]
    root = classes["Instruction"](
        id=99, name="root", opcode=kind, shape=shape(result), operand_ids=ids, custom_call_target=target
    )
    computation = classes["Computation"](id=1, name="main", root_id=99, instructions=[*given, root])
    proto = classes["Hlo"](hlo_module=classes["Module"](id=1, computations=[computation], entry_computation_id=1))
    return count_cost(read_module(proto), root)


@pytest.mark.parametrize("name", ["gpt3_126m", "llama_125m"])
def test_a_step_on_a_gpu_has_the_operations_of_the_models_formula(name: str) -> None:
    """Compiled on an H100: loops over layers, products in cuBLAS, attention in cuDNN.

    The mask hides half of attention's products. Two run in the forward pass, two again since attention is checkpointed,
    and five in its backward pass: 9 / 2 where the formula counts 6. Elementwise arithmetic adds a quarter of a percent.
    """
    path = RECORDED / "h100" / f"{name}.hlo.pb.xz"
    counted = count_flops(read_module(parse_hlo(lzma.decompress(path.read_bytes()), name)))
    config = find_preset(name)()
    formula = config.batch_size * (train_flops(config.model) - masked_flops(config.model) / 2)
    assert 0.999 * formula < counted < 1.005 * formula


def test_a_loop_counts_once_for_each_of_its_trips() -> None:
    def program(x: jax.Array) -> Any:
        return jax.lax.fori_loop(0, 7, lambda _, y: y @ x, x)

    compiled: Any = jax.jit(program).lower(jnp.ones((64, 64))).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    counted = count_flops(read_module(pack_module(parse_module(module.as_serialized_hlo_module_proto()))))
    assert counted == pytest.approx(7 * 2 * 64**3, rel=0.001)  # and the comparison of the loop's counter


def test_on_a_cpu_the_facts_keep_xlas_own_count() -> None:
    compiled: Any = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compile()
    assert count_flops_on_gpu(compiled) is None
    assert read_facts("p", compiled)["flops"] == compiled.cost_analysis()["flops"]
    assert read_facts("p", compiled, 5.0)["flops"] == 5.0
