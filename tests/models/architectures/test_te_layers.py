"""TransformerEngine: without library or GPU an error says what is missing; with it switches make products its own.

Where the library is installed, but no GPU, workloads are compiled for one; on a GPU they agree with bfloat16.
"""

import importlib.util
import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from nightjar_models.aot.topology import find_plugin
from nightjar_models.architectures import te_layers
from nightjar_models.architectures.precision import Fp8Scaling, TEProduct
from nightjar_models.architectures.te_layers import (
    RECIPES,
    check_library,
    check_recipe,
    check_sizes,
    find_capability,
    find_recipe,
    make_feed_forward,
)
from nightjar_models.errors import InputError, ToolError
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import CHOICES, override
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from tests.models.conftest import Command, run_steps

# of the library about itself
pytestmark = pytest.mark.filterwarnings("ignore:::transformer_engine", "ignore:Using unfused JAX softmax")

HAS_LIBRARY = importlib.util.find_spec("transformer_engine") is not None
needs_library = pytest.mark.skipif(not HAS_LIBRARY, reason="TransformerEngine is not installed")


def test_a_recipe_is_refused_with_its_reason() -> None:
    check_recipe("delayed", (9, 0))
    check_recipe("nvfp4", (10, 0))
    with pytest.raises(InputError, match=r"unknown recipe 'mxfp'.*did you mean 'mxfp8'"):
        check_recipe("mxfp", (10, 0))
    with pytest.raises(ToolError, match=r"mxfp8: expected compute capability 10\.0 or newer, found 9\.0"):
        check_recipe("mxfp8", (9, 0))
    with pytest.raises(ToolError, match=r"found none.*Hint: compute\.products=fp8.*\.architectures\.precision"):
        check_recipe("delayed", None)
    check_recipe(None, (8, 0))
    with pytest.raises(
        ToolError, match=r"layers: expected compute capability 8\.0 or newer, found 7\.5\. Hint: compute\.l"
    ):
        check_recipe(None, (7, 5))


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_a_recipe_says_so() -> None:
    assert find_capability(jax.local_devices()[0]) is None
    for name in (*RECIPES, None):
        with pytest.raises(ToolError, match="found none"):
            check_library(name, jax.local_devices()[0])


@pytest.mark.skipif(HAS_LIBRARY, reason="TransformerEngine is installed")
def test_a_missing_library_says_how_to_get_it() -> None:
    on_h100 = SimpleNamespace(platform="gpu", compute_capability="9.0")
    with pytest.raises(ToolError, match=r"cannot be imported.*Hint: pip install 'nightjar-models\[te\]'"):
        check_library("delayed", on_h100)
    with pytest.raises(ToolError, match=r"cannot be imported.*Hint: pip install 'nightjar-models\[te\]'"):
        make_feed_forward(8, epsilon=1e-5, gated=False)


def test_every_recipe_is_a_choice_of_products_and_every_other_choice_is_none() -> None:
    recipes = {choice: find_recipe(choice) for choice in CHOICES["compute.products"]}
    assert recipes == {"plain": None, "fp8": None} | {f"te_{name}": name for name in RECIPES}


def test_without_a_gpu_the_command_ends_before_it_reads_or_compiles(called: Command) -> None:
    done = called("train", "gpt_tiny", "--set", "compute.products=te_delayed", "--out", "out")
    assert done.returncode == 3
    assert "recipe delayed: expected an NVIDIA GPU of compute capability 8.9, found none." in done.stderr
    assert "Hint: compute.products=fp8" in done.stderr
    assert not {"reading", "compiling"} & set(done.stderr.split())


def test_sizes_that_a_recipe_cannot_scale_are_refused() -> None:
    check_sizes("delayed", (2048, 96, 384))
    with pytest.raises(InputError, match=r"te_nvfp4: 2048 x 96 x 384, expected multiples of 128\. Hint: change batch_"):
        check_sizes("nvfp4", (2048, 96, 384))


def test_a_product_remembers_what_its_recipe_needs_and_nothing_else() -> None:
    remembered = {
        name: {path[-1]: variable for path, variable in nnx.to_flat_state(nnx.state(TEProduct(name)))}
        for name in RECIPES
    }
    factors = ("x", "kernel", "grad")
    assert remembered["delayed"].keys() == {f"{f}_{kind}" for f in factors for kind in ("scale", "amax_history")}
    assert not remembered["mxfp8"]
    assert list(remembered["nvfp4"]) == ["steps"]
    assert all(isinstance(one, Fp8Scaling) for state in remembered.values() for one in state.values())


class DrawnProduct(nn.Module):
    """Stands in for TransformerEngine's product by a recipe that rounds by chance: adds what is drawn."""

    def __call__(self, x: jax.Array, w: jax.Array, dimensions: Any) -> jax.Array:
        drawn = jax.random.normal(self.make_rng("sr_rng"), (w.shape[-1],), x.dtype)
        return jax.lax.dot_general(x, w, dimensions) + 0.01 * drawn


@pytest.mark.slow
def test_each_step_draws_other_numbers_and_only_steps_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(te_layers, "check_library", lambda name, device: None)
    monkeypatch.setattr(te_layers, "make_dot_general", lambda name, device: DrawnProduct())
    sizes = ["model.width=128", "model.heads=2", "model.feed_forward=128", "model.length=16", "model.layers=2"]
    settings = [*sizes, "batch_size=8", "warmup_steps=1", "compute.scan_layers=true", "compute.products=te_nvfp4"]
    config = override(find_preset("llama_tiny")(), settings)
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    tokens = {"tokens": np.random.default_rng(0).integers(0, 256, (8, 17), dtype=np.int32)}
    state = program.initialize(0)
    first = program.evaluate(state, [tokens])["loss"]
    assert first == program.evaluate(state, [tokens])["loss"]
    state, _ = run_steps(program, [tokens] * 3)
    model = program.model(state)
    counts = [one for path, one in nnx.to_flat_state(nnx.state(model, Fp8Scaling)) if path[-1] == "steps"]
    assert len(counts) == 3  # one for each product, of all layers
    assert [count[...].tolist() for count in counts] == [[[3.0], [3.0]]] * 3
    later = program.evaluate(state, [tokens])["loss"]
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, Fp8Scaling)))
    assert program.evaluate(state, [tokens])["loss"] != later


def has_what_compiles() -> bool:
    return HAS_LIBRARY and find_plugin() is not None


@pytest.mark.slow
@pytest.mark.skipif(not has_what_compiles(), reason="TransformerEngine or JAX's CUDA plugin is not installed")
@pytest.mark.parametrize(
    ("preset", "layers", "recipe", "target", "matrices", "quantized"),
    [  # both factors of a product and the gradient that goes backwards, if nothing quantizes what it computes itself
        ("gpt_tiny", "plain", "delayed", "h100", 2, 6),
        ("llama_tiny", "plain", "delayed", "h100", 3, 9),
        ("llama_tiny", "plain", "mxfp8", "b200", 3, 9),
        ("gpt_tiny", "plain", "nvfp4", "b200", 2, 6),
        # norm and GELU quantize; with MXFP8 the gradient of GELU does so too
        ("gpt_tiny", "te_feed_forward", "delayed", "h100", 2, 4),
        ("gpt_tiny", "te_feed_forward", "mxfp8", "b200", 2, 3),
        ("gpt_tiny", "te_feed_forward", "nvfp4", "b200", 2, 6),
        ("gpt_tiny", "te_feed_forward", None, "h100", 2, 0),
        ("gpt_tiny", "te_block", "delayed", "h100", 4, 9),
        ("gpt_tiny", "te_block", "mxfp8", "b200", 4, 8),
        ("gpt_tiny", "te_block", "nvfp4", "b200", 4, 12),
        ("gpt_tiny", "te_block", None, "h100", 4, 0),
        ("llama_tiny", "te_feed_forward", "delayed", "h100", 2, 3),
        ("llama_tiny", "te_block", "delayed", "h100", 5, 12),  # grouped keys and values are a matrix apart from queries
    ],
)
def test_compiled_for_a_gpu_products_and_layers_are_those_of_transformer_engine(
    preset: str, layers: str, recipe: str | None, target: str, matrices: int, quantized: int, nightjar_models: Command
) -> None:
    settings = ["model.layers=1", "model.width=128", "model.feed_forward=256", f"compute.layers={layers}"]
    settings += [] if recipe is None else [f"compute.products=te_{recipe}"]
    options = [part for setting in settings for part in ("--set", setting)]
    done = nightjar_models(
        *("compile", preset, "--target", target, "--mesh", "dp1", "--out", "out", "--json", *options),
        JAX_PLATFORMS="cpu",
    )
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)["facts"][0]["ahead"]["kernels"]
    runs = {kind: work["runs"] for kind, work in kernels.items()}
    config = override(find_preset(preset)(), settings)
    model: Any = config.model
    in_block, heads, fed = layers == "te_block", 4.0, 2
    if preset == "llama_tiny":
        heads, fed = 2 + 2 * model.groups / model.heads, 3
    sizes = fed * model.feed_forward + heads * in_block * model.width
    # forward, and the gradients of both factors
    product = "TransformerEngine matmul" if recipe is None else "TransformerEngine matmul scaled"
    assert [kind for kind in kernels if "TransformerEngine matmul" in kind] == [product]
    assert runs[product] == 3 * matrices
    assert kernels[product]["flops"] == 3 * 2.0 * config.batch_size * model.length * model.width * sizes
    assert runs.get("TransformerEngine quantize", 0) == quantized
    norms = {"plain": 0, "te_feed_forward": 1, "te_block": 2}[layers]
    assert runs.get("TransformerEngine norm", 0) == 2 * norms
    assert runs.get("TransformerEngine activation", 0) == (2 if norms else 0)
    assert runs.get("TransformerEngine softmax", 0) == (2 if in_block else 0)


@pytest.mark.slow
@pytest.mark.skipif(not has_what_compiles(), reason="TransformerEngine or JAX's CUDA plugin is not installed")
@pytest.mark.parametrize(
    "case",
    [
        *("gpt_tiny dp2.fsdp2.tp2 plain delayed h100", "gpt_tiny fsdp8 te_block delayed h100"),
        "llama_tiny fsdp4.tp2 te_block mxfp8 b200",
    ],
)
def test_compiled_for_a_mesh_it_gathers_what_the_plain_program_does(case: str, nightjar_models: Command) -> None:
    preset, mesh, layers, recipe, target = case.split()
    sizes = ["model.layers=1", "model.width=256", "model.feed_forward=512", "compute.dtype=bf16"]
    messages = []
    for out, extra in (("plain", []), ("found", [f"compute.layers={layers}", f"compute.products=te_{recipe}"])):
        options = [part for setting in (*sizes, *extra) for part in ("--set", setting)]
        command = ("compile", preset, "--target", f"{target}x8", "--mesh", mesh, "--out", out, "--json", *options)
        done = nightjar_models(*command, JAX_PLATFORMS="cpu")
        assert done.returncode == 0, done.stderr
        messages.append(json.loads(done.stdout)["facts"][0]["ahead"]["messages"])
    plain, found = ({kind: work["bytes"] for kind, work in one.items() if "reduce/" not in kind} for one in messages)
    assert found.keys() == plain.keys()
    assert all(found[kind] <= 1.1 * plain[kind] for kind in plain)  # MXFP8's factors have scales of their own
    assert set(messages[1]) - set(messages[0]) <= {"all-reduce/8"}  # the largest value of all devices


@pytest.mark.slow
@pytest.mark.skipif(not has_what_compiles(), reason="TransformerEngine or JAX's CUDA plugin is not installed")
def test_compiled_for_a_gpu_a_block_cannot_ask_for_attention_of_cudnn_and_says_so(nightjar_models: Command) -> None:
    settings = ("model.layers=1", "compute.dtype=bf16", "compute.attention=cudnn", "compute.layers=te_block")
    options = [part for setting in settings for part in ("--set", setting)]
    done = nightjar_models(
        *("compile", "gpt_tiny", "--target", "h100", "--mesh", "dp1", "--out", "out", "--json", *options),
        JAX_PLATFORMS="cpu",
    )
    assert done.returncode == 0, done.stderr
    (lint,) = json.loads(done.stdout)["facts"][0]["ahead"]["lints"]
    assert "cudnn was asked for, xla (cudnn refused: TransformerEngine asks cuDNN on the GPU itself" in lint
    assert "attention: xla (cudnn refused:" in done.stderr


def skip_unless_computed(products: str) -> None:
    try:
        check_recipe(find_recipe(products), find_capability(jax.local_devices()[0]))
    except ToolError as error:
        pytest.skip(error.message)


SCALED = [f"te_{name}" for name in RECIPES]
FUSED = ["te_feed_forward", "te_block"]


@pytest.mark.gpu
@needs_library
@pytest.mark.parametrize(
    ("layers", "products"),
    [*(("plain", one) for one in SCALED), *((layers, one) for layers in FUSED for one in ("plain", *SCALED))],
)
def test_a_workload_trains_by_a_recipe_or_by_its_layers_as_without(layers: str, products: str) -> None:
    skip_unless_computed(products)
    sizes = ["model.width=128", "model.heads=2", "model.feed_forward=256", "model.length=64", "model.layers=2"]
    tokens = {"tokens": np.random.default_rng(0).integers(0, 256, (8, 65), dtype=np.int32)}

    def train(*switches: str) -> list[float]:
        settings = [
            *sizes,
            "batch_size=8",
            "warmup_steps=1",
            "compute.dtype=bf16",
            "compute.attention=cudnn",
            *switches,
        ]
        config = override(find_preset("gpt_tiny")(), settings)
        program = make_program(config, find_task(config), make_mesh(MeshShape()))
        return run_steps(program, [tokens] * 8)[1]

    plain, found = train(), train(f"compute.layers={layers}", f"compute.products={products}")
    # FP8 has 3 bits of mantissa and FP4 one; the losses are means over 512 positions. Runs part as they learn, those of
    # whole blocks sooner: twice as many products are rounded
    steps = 6 if layers == "te_block" else 8
    assert found[:steps] == pytest.approx(plain[:steps], rel=0.1 if products == "te_nvfp4" else 0.02)
    assert found[1:] != plain[1:]
