"""A block by TransformerEngine's layers has the parameters, the losses and the memory of the plain one.

Without the library modules stand in for its layers that have the parameters and the formulas of its documentation; with
it its own layers compute: without a GPU by the JAX code that they have beside each kernel, on one by their kernels.
"""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from nightjar_models.architectures import llama, precision, te_block, te_layers
from nightjar_models.architectures.precision import Fp8Scaling
from nightjar_models.architectures.transformer import Block
from nightjar_models.errors import InputError, ToolError
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import CHOICES, Compute, override
from nightjar_models.presets.sizes import GPTConfig, LlamaConfig
from nightjar_models.training.idioms import make_program
from nightjar_models.training.step import Program
from nightjar_models.training.tasks import find_task
from tests.models.conftest import run_steps
from tests.models.parallel.eight_meshes import make_batch, tiny

HAS_LIBRARY = importlib.util.find_spec("transformer_engine") is not None
ON_GPU = jax.default_backend() == "gpu"
# of the library about itself
pytestmark = pytest.mark.filterwarnings("ignore:::transformer_engine", "ignore:Using unfused JAX softmax")

LAYERS = ("te_feed_forward", "te_block")
KINDS = ("gpt causal", "gpt", "llama of groups 4", "llama of groups 2")
OWNERS = {  # of what each matrix remembers
    "0": "feed_forward.linear_in.dot_general",
    "1": "feed_forward.linear_out.dot_general",
    "2": "te_products.0",
    "3": "te_products.1",
}
SIZES = GPTConfig(length=16, width=32, layers=2, heads=2, feed_forward=64)


def norm_of(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Layer norm, as the documentation of TransformerEngine's `LayerNorm` has it."""
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred / jnp.sqrt(jnp.var(x, -1, keepdims=True) + epsilon) * scale + bias


def gelu(x: jax.Array) -> jax.Array:
    """GELU, as TransformerEngine's kernels have it (common/util/math.h)."""
    return x * (0.5 + 0.5 * jnp.tanh(x * (0.79788456 + 0.03567741 * x * x)))


class Remembering(nn.Module):
    """Reads scales and histories of its factors; the "gradient" of each is another number, in the order of names."""

    def remember(self, y: jax.Array, suffix: str) -> jax.Array:
        if not self.has_variable(te_layers.REMEMBERED, f"x{suffix}_scale"):
            return y
        names = [f"{factor}{suffix}_{kind}" for factor in ("x", "kernel", "grad") for kind in ("scale", "amax_history")]
        path = "/".join((*self.path, ""))
        found: dict[str, jax.Array] = {name: self.get_variable(te_layers.REMEMBERED, name) for name in names}
        return touch(y, {f"{path}{name}": value for name, value in found.items()})


@jax.custom_vjp
def touch(y: jax.Array, state: dict[str, jax.Array]) -> jax.Array:
    return y


def number_of(name: str) -> float:
    return float(sum(position * ord(letter) for position, letter in enumerate(name, 1)))


touch.defvjp(
    lambda y, state: (y, state),
    lambda state, gradient: (gradient, {name: jnp.full_like(one, number_of(name)) for name, one in state.items()}),
)


class MLP(Remembering):
    """Stands in for `LayerNormMLP` without a gate."""

    hidden: int
    epsilon: float
    gated: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        ones, zeros, width = nn.initializers.ones, nn.initializers.zeros, x.shape[-1]
        normed = norm_of(x, self.param("scale", ones, (width,)), self.param("ln_bias", zeros, (width,)), self.epsilon)
        wi, wo = (self.param(*one) for one in self.kernels(width))
        inner = jnp.einsum("btd,daf->btaf", normed, wi) + self.param("wi_bias", zeros, (1, self.hidden))
        inner = self.remember(gelu(inner)[..., 0, :], "_0")
        return self.remember(inner @ wo + self.param("wo_bias", zeros, (width,)), "_1"), None

    def kernels(self, width: int) -> Iterator[Any]:
        yield "wi_kernel", nn.initializers.normal(), (width, 1, self.hidden)
        yield "wo_kernel", nn.initializers.normal(), (self.hidden, width)


class Projection(Remembering):
    """Stands in for `LayerNormDenseGeneral`, and without an epsilon for `DenseGeneral`."""

    shape: tuple[int, ...]
    epsilon: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, zeros = x.shape[-1], nn.initializers.zeros
        if self.epsilon is not None:
            scale = self.param("scale", nn.initializers.ones, (width,))
            x = norm_of(x, scale, self.param("ln_bias", zeros, (width,)), self.epsilon)
        kernel = self.param("kernel", nn.initializers.normal(), (width, *self.shape))
        return self.remember(jnp.tensordot(x, kernel, 1) + self.param("bias", zeros, self.shape), "")


class Attention(nn.Module):
    """Stands in for `MultiHeadAttention` with queries, keys and values in one parameter."""

    heads: int
    causal: bool
    epsilon: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        joined = Projection((3, width), self.epsilon, name="qkv")(x).reshape(batch, length, 3, self.heads, -1)
        q, k, v = joined[:, :, 0], joined[:, :, 1], joined[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        if self.causal:
            scores = jnp.where(jnp.arange(length)[:, None] >= jnp.arange(length), scores, -jnp.inf)
        seen = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return Projection((width,), name="out")(seen.reshape(batch, length, width))


class Layer(nn.Module):
    """Stands in for `TransformerLayer` without a gate."""

    width: int
    hidden: int
    heads: int
    groups: int
    causal: bool
    epsilon: float
    rope_base: float | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + Attention(self.heads, self.causal, self.epsilon, name="attention")(x)
        return x + MLP(self.hidden, self.epsilon, name="mlp")(x)[0]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The layers above, in float32; those that were made."""
    made: list[nn.Module] = []

    def make(kind: type[nn.Module], *sizes: Any, **others: Any) -> nn.Module:
        made.append(kind(*sizes, **others))
        return made[-1]

    monkeypatch.setattr(te_layers, "check_library", lambda name, device: None)
    monkeypatch.setattr(te_layers, "multiply_by", lambda name, device: contextlib.nullcontext())
    monkeypatch.setattr(te_layers, "make_feed_forward", functools.partial(make, MLP))
    monkeypatch.setattr(te_layers, "make_block", functools.partial(make, Layer))
    monkeypatch.setattr(te_layers, "DTYPE", jnp.float32)
    return made


def train(preset: str, *settings: str, steps: int = 4) -> tuple[Program, Any, list[float]]:
    config = tiny(preset, *settings)
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    state, losses = run_steps(program, [make_batch(config)] * steps)
    return program, state, losses


def variables(program: Program, state: Any) -> dict[str, Any]:
    flat = nnx.to_flat_state(nnx.state(program.model(state)))
    return {".".join(map(str, path)): variable[...] for path, variable in flat}


@pytest.fixture
def by_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own layers on this CPU, by the JAX code that it has for each of its kernels."""
    h100 = SimpleNamespace(platform="gpu", compute_capability="9.0", core_count=132)
    monkeypatch.setenv("NVTE_JAX_CUSTOM_CALLS", "false")
    monkeypatch.setattr(te_layers, "check_library", lambda name, device: None)
    for module in (te_block, precision):
        monkeypatch.setattr(module, "traced_device", lambda: h100)


@functools.cache
def train_plain(preset: str, *settings: str) -> tuple[tuple[str, ...], list[float]]:
    program, _, losses = train(preset, *settings)
    return program.names["model"], losses


def compare(layers: str, products: str, kind: str = "gpt causal", **others: Any) -> dict[str, float]:
    """How far what a block adds and its gradients are from those of the plain block in bfloat16, relatively."""
    sizes = {"length": 128, "width": 256, "layers": 1, "heads": 4, "feed_forward": 1024}
    x = jax.random.normal(jax.random.key(0), (2, 128, 256), jnp.bfloat16)
    weights = jax.random.normal(jax.random.key(1), x.shape)

    def make(compute: Compute) -> Any:
        if kind.startswith("llama"):
            return llama.Block(LlamaConfig(**sizes, groups=int(kind[-1])), compute, rngs=nnx.Rngs(0))
        return Block(GPTConfig(**sizes), compute, causal=kind == "gpt causal", rngs=nnx.Rngs(0))

    def run(**switches: Any) -> dict[str, Any]:
        block = make(Compute(dtype="bf16", **switches))
        graph, *states = nnx.split(block, nnx.Param, ...)
        learned, remembered = states

        def project(parameters: Any) -> tuple[jax.Array, jax.Array]:
            added = nnx.merge(graph, parameters, remembered)(x) - x
            return (added.astype(jnp.float32) * weights).sum(), added

        gradients, added = jax.jit(jax.grad(project, has_aux=True))(learned)
        by_name = {".".join(map(str, path)): one.get_value() for path, one in nnx.to_flat_state(gradients)}
        return {name: np.asarray(one, np.float32) for name, one in (by_name | {"added": added}).items()}

    plain, found = run(**others), run(layers=layers, products=products, **others)
    assert found.keys() == plain.keys()
    plain.pop("attention.key.bias", None)  # zero but for rounding: it moves all scores of a query alike
    return {name: float(np.linalg.norm(found[name] - plain[name]) / np.linalg.norm(plain[name])) for name in plain}


def judge(products: str, differences: dict[str, float]) -> None:
    """bfloat16 has 7 bits of mantissa; FP8 3, 0.05 for a product of many, of which there are several; FP4 has one."""
    assert max(differences.values()) < {"plain": 0.03, "te_nvfp4": 0.6}.get(products, 0.2), differences
    assert products == "plain" or differences["added"] > 1e-3


def variables_of(**chosen: str) -> dict[str, tuple[type[Any], tuple[int, ...]]]:
    made = nnx.eval_shape(lambda: Block(SIZES, Compute(**chosen), causal=True, rngs=nnx.Rngs(0)))  # type: ignore[arg-type]
    found = nnx.to_flat_state(nnx.state(made))
    return {".".join(map(str, path)): (type(one), one.shape) for path, one in found}


def test_the_choices_are_those_of_the_library() -> None:
    assert CHOICES["compute.layers"] == ("plain", te_layers.FEED_FORWARD, te_layers.BLOCK)


@pytest.mark.parametrize("products", ["plain", "te_delayed", "te_mxfp8", "te_nvfp4"])
def test_the_parameters_are_those_of_the_plain_block_and_a_block_remembers_of_four_matrices(products: str) -> None:
    plain = variables_of(products=products)
    assert variables_of(products=products, layers="te_feed_forward") == plain
    whole = variables_of(products=products, layers="te_block")
    assert {name: one for name, one in whole.items() if not name.startswith("te_products")} == plain
    more = {name.replace("te_products.0", OWNERS["0"]).replace("te_products.1", OWNERS["1"]) for name in whole}
    assert more == plain.keys()
    assert len(whole) - len(plain) == len([name for name in plain if "dot_general" in name])
    assert all(kind is Fp8Scaling for name, (kind, _) in whole.items() if "te_products" in name)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        pytest.param("vit_tiny", ("model.layers=1",), marks=pytest.mark.weekly),
        ("gpt_tiny", ("compute.scan_layers=true", "compute.remat=full")),
    ],
)
@pytest.mark.slow
def test_losses_are_the_plain_ones(
    preset: str, settings: tuple[str, ...], layers: str, stand_ins: list[nn.Module]
) -> None:
    names, losses = train_plain(preset, *settings)
    assert not stand_ins
    ours = train(preset, f"compute.layers={layers}", *settings)
    assert {type(one) for one in stand_ins} == {MLP if layers == "te_feed_forward" else Layer}
    assert ours[0].names["model"] == names
    # float32 sums of at most 256 numbers in another order, over four steps
    assert ours[2] == pytest.approx(losses, rel=2e-5)
    assert losses[3] < 0.99 * losses[0]


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.slow
def test_what_a_matrix_remembers_is_handed_over_by_its_name_and_comes_back_to_it() -> None:
    sizes = ["compute.products=te_delayed", "model.layers=1"]
    program, state, _ = train("gpt_tiny", *sizes, "compute.layers=te_block", steps=1)
    found = variables(program, state)
    places = {  # TransformerEngine's by ours; a gradient of LayerNormMLP is rounded by the other matrix's quantizer
        **{("0", factor): f"mlp/{factor}_0" for factor in ("x", "kernel")},
        **{("1", factor): f"mlp/{factor}_1" for factor in ("x", "kernel")},
        **{("0", "grad"): "mlp/grad_1", ("1", "grad"): "mlp/grad_0"},
        **{("2", factor): f"attention/qkv/{factor}" for factor in ("x", "kernel", "grad")},
        **{("3", factor): f"attention/out/{factor}" for factor in ("x", "kernel", "grad")},
    }
    for (matrix, factor), place in places.items():
        for kind in ("scale", "amax_history"):
            remembered = found.pop(f"blocks.0.{OWNERS[matrix]}.scaling.{factor}_{kind}")
            assert remembered.tolist() == [number_of(f"{place}_{kind}")] * remembered.size
    assert not [name for name in found if "scaling" in name]


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.slow
def test_random_rounding_counts_the_steps_of_each_matrix(layers: str) -> None:
    sizes = ["model.width=128", "model.feed_forward=128", "model.layers=1"]
    program, state, _ = train("gpt_tiny", *sizes, "compute.products=te_nvfp4", f"compute.layers={layers}", steps=3)
    counts = [count.tolist() for name, count in variables(program, state).items() if name.endswith("steps")]
    assert counts == [[3.0]] * (2 if layers == "te_feed_forward" else 4)


@pytest.mark.usefixtures("stand_ins")
def test_sizes_that_the_recipe_cannot_scale_are_refused() -> None:
    with pytest.raises(InputError, match=r"te_mxfp8: 256 x 16 x 32, expected multiples of 32"):
        train("gpt_tiny", "compute.products=te_mxfp8", "compute.layers=te_feed_forward")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("layers=te_block", "products=fp8"), "layers=te_block: expected compute.products plain or a recipe of Trans"),
        (("layers=te_feed_forward", "products=fp8"), "layers=te_feed_forward: expected compute.products plain or a"),
        (("layers=te_block", "attention=ring"), "te_block: expected compute.attention xla or cudnn, found ring"),
        (("layers=te_blok",), "expected one of plain, te_feed_forward, te_block, found 'te_blok'. Hint: did you mean"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        override(find_preset("gpt_tiny")(), [f"compute.{one}" for one in settings])


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBRARY or ON_GPU, reason="TransformerEngine is not installed, or computes on a GPU")
@pytest.mark.parametrize("products", ["plain", "te_delayed"])  # the others' products have no JAX code for CPUs
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("by_jax")
def test_its_own_layers_and_gradients_agree_with_the_plain_block(kind: str, layers: str, products: str) -> None:
    judge(products, compare(layers, products, kind))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBRARY or ON_GPU, reason="TransformerEngine is not installed, or computes on a GPU")
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.usefixtures("by_jax")
def test_a_workload_learns_by_its_own_layers_and_remembers_what_its_products_do(layers: str) -> None:
    settings = ["model.width=128", "model.feed_forward=256", "compute.dtype=bf16"]
    plain = train("gpt_tiny", *settings)[2]
    apart, own = (
        train("gpt_tiny", *settings, "compute.products=te_delayed", f"compute.layers={one}")
        for one in ("plain", layers)
    )
    # FP8 has 3 bits of mantissa; the losses are means over 256 positions
    assert own[2] == pytest.approx(plain, rel=0.02)
    states = [variables(program, state) for program, state, _ in (apart, own)]
    remembered = {name for name in states[0] if "scaling" in name}
    assert len(remembered) == 2 * 2 * 6
    for name in remembered:
        was, now = (np.asarray(state[name]) for state in states)
        if name.endswith("history"):
            assert (now > 0).sum() == (was > 0).sum() == 4
        else:  # gradients differ by a factor of three between the two matrices
            assert now == pytest.approx(was, rel=0.25), name


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_LIBRARY, reason="TransformerEngine is not installed")
@pytest.mark.parametrize("products", ["plain", *(f"te_{name}" for name in te_layers.RECIPES)])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize(("kind", "attention"), [(KINDS[0], "xla"), (KINDS[0], "cudnn"), (KINDS[3], "cudnn")])
def test_on_a_gpu_a_block_and_gradients_agree_with_the_plain_one(
    kind: str, attention: str, layers: str, products: str
) -> None:
    try:
        te_layers.check_library(te_layers.find_recipe(products), jax.local_devices()[0])
    except ToolError as error:
        pytest.skip(error.message)
    judge(products, compare(layers, products, kind, attention=attention))
