"""Operations of a step as counted from its HLO, beside the model's own formula and XLA's cost analysis."""

import lzma
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.measuring.facts import read_facts
from nightjar_models.measuring.hlo import pack_module, parse_hlo, parse_module
from nightjar_models.presets import find_preset
from nightjar_models.program.kernels import count_flops, count_flops_on_gpu
from nightjar_models.program.module import read_module
from nightjar_models.training.flops import masked_flops, train_flops
from tests.places import RECORDED


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
