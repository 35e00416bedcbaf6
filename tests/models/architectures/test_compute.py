"""The ways of computing a step give the same step: scanned, recomputed, in microbatches, in bfloat16, in FP8."""

import functools
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.architectures.stack import checkpointed
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh, use_mesh
from nightjar_models.presets.config import Compute, TrainConfig, override
from nightjar_models.presets.tiny import llama_tiny
from nightjar_models.training.idioms import make_program
from nightjar_models.training.step import Program
from nightjar_models.training.tasks import find_task
from tests.models.conftest import QUICK_COMPILE, draw_all_but_parameters
from tests.models.parallel.eight_meshes import make_batch, tiny

OTHERS = ("gpt_tiny", "vit_tiny", "moe_tiny", "t5_tiny", "diffusion_tiny", "vae_tiny")
SIZES = ["model.length=16", "model.width=16", "model.feed_forward=32", "model.layers=2", "batch_size=8"]
STEPS = 3  # the learning rate of the first is zero
# Compile time matters here, not run time.
FAST = {"xla_backend_optimization_level": "0", **QUICK_COMPILE}


@functools.cache
def losses(*settings: str) -> tuple[float, ...]:
    """The losses of three steps on one batch: the third tells whether gradients and optimizer agree."""
    config = override(llama_tiny(), [*SIZES, "warmup_steps=1", *settings])
    return run(config, {"tokens": np.asarray(jax.random.randint(jax.random.key(0), (8, 17), 0, 256))})


@functools.cache
def losses_of(preset: str, *settings: str) -> tuple[float, ...]:
    config = tiny(preset, *settings)
    return run(config, make_batch(config))


def run(config: TrainConfig, batch: dict[str, Any]) -> tuple[float, ...]:
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    state = start(program, config.compute.scan_layers)
    step = program.bind(program.lower(batch).compile(FAST))
    assert {value.dtype.name for value in jax.tree.leaves(nnx.state(program.model(state), nnx.Param))} == {"float32"}
    found = []
    for _ in range(STEPS):
        with use_mesh(program.mesh):
            state, loss = step(state, batch)
        found.append(float(loss))
    return tuple(found)


def start(program: Program, scanned: bool) -> Any:
    """A first state whose parameters depend on their names alone, so that scanned layers start as unrolled ones do."""
    tree = draw_all_but_parameters(program)
    for path, variable in nnx.to_flat_state(tree):
        if isinstance(variable, nnx.Param):
            variable.set_value(draw(tuple(map(str, path[1:])), variable.shape, scanned))
    return program.load(tree)


def draw(path: tuple[str, ...], shape: tuple[int, ...], scanned: bool) -> jax.Array:
    """The values of a parameter: near one for scales, small for biases."""
    if scanned and path[0] in ("blocks", "encoder", "decoder", "text_blocks"):
        layers = range(shape[0])
        return jnp.stack([draw((path[0], str(layer), *path[1:]), shape[1:], False) for layer in layers])
    rng = np.random.default_rng(zlib.crc32(".".join(path).encode()))
    values = rng.normal(size=shape) / max(1, math.prod(shape[:-1])) ** 0.5
    return jnp.asarray(1 + values / 9 if path[-1] == "scale" else values, jnp.float32)


@pytest.mark.parametrize(
    "settings",
    [
        ["compute.scan_layers=true", "compute.remat=dots_no_batch"],
        ["compute.accumulate=4", "compute.remat=full"],
        ["idiom=split", "compute.remat=dots"],
        ["compute.remat=offload_dots"],
        ["compute.scan_layers=true", "compute.remat=offload_inputs"],
    ],
    ids=lambda settings: "+".join(settings),
)
@pytest.mark.slow
def test_the_way_of_computing_does_not_change_the_step(settings: list[str]) -> None:
    # float32: sums in another order, over at most 128 tokens
    assert losses(*settings) == pytest.approx(losses(), rel=1e-5)
    assert losses()[-1] < losses()[0]


@pytest.mark.parametrize(
    ("remat", "moved"), [("dots_no_batch", False), ("offload_dots", True), ("offload_inputs", True)]
)
def test_a_policy_that_offloads_moves_values_to_the_host_and_back(remat: str, moved: bool) -> None:
    layers = nnx.Sequential(jnp.tanh, nnx.Linear(8, 8, rngs=nnx.Rngs(0)), jnp.tanh)  # gradients need product and input
    graph, state = nnx.split(layers)
    call = checkpointed(Compute(remat=remat))
    differentiate = nnx.grad(lambda layers, x: call(layers, x).sum(), argnums=1)
    traced = jax.make_jaxpr(lambda state, x: differentiate(nnx.merge(graph, state), x))(state, jnp.ones((4, 8)))
    assert ("f32<host>[4,8]" in str(traced)) is moved


@pytest.mark.weekly  # a llama does so in the gate: the tests around this one, and test_precision.py
@pytest.mark.parametrize("preset", OTHERS)
@pytest.mark.usefixtures("float16")
def test_each_model_computes_its_step_in_microbatches_layer_by_layer_in_bfloat16_and_in_fp8(preset: str) -> None:
    # Adafactor clips each parameter by its mean square, that of stacked layers together: another curve
    usual = ["optimizer=adamw", "learning_rate=0.001"] if preset == "t5_tiny" else []
    scan = [] if preset == "vae_tiny" else ["compute.scan_layers=true"]  # it has no equal layers: refused
    changed = losses_of(preset, *usual, *scan, "compute.accumulate=4", "compute.remat=full")
    assert changed == pytest.approx(losses_of(preset, *usual), rel=1e-5)
    plain = losses_of(preset)
    products = [] if preset in ("diffusion_tiny", "vae_tiny") else ["compute.products=fp8"]  # refused
    rounded = losses_of(preset, "compute.dtype=bf16", *products)
    assert rounded != plain
    # bfloat16 has 8 bits and FP8 4, averaged over the positions or pixels of 16 examples
    assert rounded == pytest.approx(plain, rel=2e-2)
    assert plain[-1] < plain[0] * 0.999
    assert rounded[-1] < rounded[0] * 0.999


@pytest.mark.slow
def test_bfloat16_rounds_and_learns() -> None:
    rounded = losses("compute.dtype=bf16")
    assert rounded != losses()
    assert rounded == pytest.approx(losses(), rel=2e-2)  # bfloat16 has 8 bits: 0.4 % per rounding
    assert rounded[-1] < rounded[0]


@pytest.mark.parametrize(("remat", "more"), [("dots", False), ("full", True)])
def test_remat_recomputes_products_in_the_backward_pass(remat: str, more: bool) -> None:
    def products(*settings: str) -> int:
        config = override(llama_tiny(), [*SIZES, *settings])
        program = make_program(config, find_task(config), make_mesh(MeshShape()))
        batch = {"tokens": jax.ShapeDtypeStruct((8, 17), np.int32)}  # type: ignore[no-untyped-call]
        return str(program.lower(batch).as_text()).count("dot_general")

    assert (products(f"compute.remat={remat}") > products()) == more
