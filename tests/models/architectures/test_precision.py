"""FP8 layers round as a NumPy reference does, keep the types that the documents state, and learn."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.architectures import precision
from nightjar_models.architectures.precision import Fp8Product, Fp8Scaling, count_step
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from tests.models.conftest import run_steps
from tests.places import ROOT

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def next_scale(history: NDArray[Any], scale: float, kind: str) -> float:
    """Delayed scaling: the largest value of the last steps becomes the largest number of the format."""
    largest = float(history.max())
    return largest / LARGEST[kind] if largest > 0 and np.isfinite(largest) else scale


def rounded(x: NDArray[Any], scale: float, kind: str) -> NDArray[Any]:
    """What is left of x after its way through FP8; the quotient is bfloat16, which may make a tie of what was none."""
    quotient = x.astype(ml_dtypes.bfloat16) / ml_dtypes.bfloat16(scale)
    clipped = np.clip(quotient.astype(np.float64), -LARGEST[kind], LARGEST[kind])
    left: NDArray[Any] = clipped.astype(TYPES[kind]).astype(np.float64) * scale
    return left


def make_linear(width: int, out: int) -> nnx.Linear:
    return nnx.Linear(width, out, use_bias=False, dot_general=Fp8Product(), rngs=nnx.Rngs(0))


def next_scalings(gradients: Any) -> Any:
    """Of the gradients of a layer's state those that are the next scales and histories."""
    return nnx.filter_state(gradients, Fp8Scaling)


def step(layer: nnx.Linear, x: jax.Array, weight: jax.Array) -> tuple[jax.Array, Any, jax.Array]:
    """The product, the gradients of the layer's state, and that of the input, of a weighted sum."""
    graph, state = nnx.split(layer)

    def total(state: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = nnx.merge(graph, state)(x)
        return (y.astype(jnp.float32) * weight).sum(), y

    (_, y), (gradients, dx) = jax.value_and_grad(total, (0, 1), has_aux=True)(state, x)
    return y, gradients, dx


@pytest.fixture(scope="module")
def two_steps(float16: None) -> dict[str, Any]:
    """Two steps on the same input: in the second one the scales come from the first."""
    layer = make_linear(32, 16)
    x, weight = 20 * jax.random.normal(jax.random.key(1), (8, 32)), jax.random.normal(jax.random.key(2), (8, 16))
    first = step(layer, x, weight)
    nnx.update(layer, next_scalings(first[1]))
    second = step(layer, x, weight)
    return {"layer": layer, "x": x, "weight": weight, "first": first, "second": second}


def as_numpy(x: Any) -> NDArray[Any]:
    return np.asarray(x, np.float64)


def test_the_second_step_rounds_by_the_scales_of_the_first(two_steps: dict[str, Any]) -> None:
    x, kernel = (
        as_numpy(two_steps["x"].astype(jnp.bfloat16)),
        as_numpy(two_steps["layer"].kernel[...].astype(jnp.bfloat16)),
    )
    scaling = two_steps["layer"].dot_general.scaling
    for name, value in (("input", x), ("kernel", kernel)):
        history = as_numpy(scaling[f"{name}_amax_history"][...])
        assert history.max() == pytest.approx(np.abs(value).max(), rel=2**-8)
        scale = next_scale(history, 1.0, "e4m3")
        after = as_numpy(two_steps["second"][1]["dot_general"]["scaling"][f"{name}_scale"][...])
        assert after == pytest.approx([scale], rel=1e-6)
    scale_x, scale_k = (np.abs(value).max() / LARGEST["e4m3"] for value in (x, kernel))
    expected = rounded(x, scale_x, "e4m3") @ rounded(kernel, scale_k, "e4m3")
    found = as_numpy(two_steps["second"][0])
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    exact = x @ kernel
    assert 0.005 < np.abs(found - exact).max() / np.abs(exact).max() < 0.1  # it is FP8, and not bfloat16


@pytest.mark.usefixtures("float16")
def test_without_history_the_scale_is_one_and_large_values_are_clipped() -> None:
    layer = make_linear(4, 4)
    layer.kernel.set_value(jnp.eye(4))
    y = layer(jnp.array([[1000.0, -1000.0, 3.0, 0.0]]))
    assert as_numpy(y).tolist() == [[448.0, -448.0, 3.0, 0.0]]


def test_types_are_those_that_the_table_states(two_steps: dict[str, Any]) -> None:
    rows = dict(re.findall(r"^\| ([\w ,]+?) \| (\w+) \|$", precision.__doc__ or "", re.MULTILINE))
    layer, (y, gradients, _) = two_steps["layer"], two_steps["second"]
    graph, state = nnx.split(layer)
    program = str(
        jax.make_jaxpr(jax.grad(lambda s: nnx.merge(graph, s)(two_steps["x"]).astype(jnp.float32).sum()))(state)
    )
    assert layer.kernel[...].dtype == rows["weights, as the optimizer keeps them"] == "float32"
    assert y.dtype == rows["result and gradients of activations"] == "bfloat16"
    assert gradients["kernel"][...].dtype == rows["gradients of weights"] == "float32"
    assert (
        {v[...].dtype.name for v in layer.dot_general.scaling.values()} == {rows["scales and histories"]} == {"float32"}
    )
    assert rows["factors of the forward product"] == "float8_e4m3fn"
    assert "f8_e4m3fn" in program
    assert rows["gradient that goes backwards"] == "float8_e5m2"
    assert "f8_e5m2" in program
    section = (ROOT / "docs/models/gpu-features.md").read_text().partition("## FP8")[2].partition("\n## ")[0]
    assert set(rows.values()) - {"type"} <= set(re.findall(r"\w+", section))


def test_scales_are_replaced_and_never_optimized(two_steps: dict[str, Any]) -> None:
    replaced = nnx.to_flat_state(next_scalings(two_steps["first"][1]))
    assert len(replaced) == 6
    assert all(isinstance(variable, Fp8Scaling) for _, variable in replaced)


@pytest.mark.usefixtures("float16")
def test_a_layer_in_fp8_learns_a_linear_map() -> None:
    layer = make_linear(16, 8)
    graph, state = nnx.split(layer)
    x, true = jax.random.normal(jax.random.key(1), (64, 16)), jax.random.normal(jax.random.key(2), (16, 8))

    @jax.jit
    def train_step(state: Any) -> tuple[Any, jax.Array]:
        def loss(state: Any) -> jax.Array:
            return ((nnx.merge(graph, state)(x).astype(jnp.float32) - x @ true) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(state)
        kernel = state["kernel"][...] - 2.0 * gradients["kernel"][...]
        scaling = next_scalings(gradients)
        return nnx.merge_state(state, scaling, nnx.State({"kernel": nnx.Param(kernel)})), value

    losses = []
    for _ in range(60):
        state, value = train_step(state)
        losses.append(float(value))
    assert losses[0] > 10
    assert losses[-1] < 0.1  # a floor of FP8's rounding: 2^-4 of values of order four, averaged over sixteen products


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.usefixtures("float16")
def test_a_llama_trains_in_fp8_by_a_switch_at_once_or_by_microbatch(parts: int) -> None:
    tokens = {"tokens": np.random.default_rng(0).integers(0, 256, (8, 17), dtype=np.int32)}
    sizes = ["model.width=16", "model.heads=2", "model.groups=1", "model.feed_forward=32", "model.length=16"]
    common = [*sizes, "model.layers=2", "batch_size=8", "warmup_steps=1", "compute.scan_layers=true"]
    steps = 8
    losses: dict[str, list[float]] = {}
    programs = {}
    for products in ("plain", "fp8"):
        settings = [*common, f"compute.products={products}", f"compute.accumulate={parts}"]
        config = override(find_preset("llama_tiny")(), settings)
        program = programs[products] = make_program(config, find_task(config), make_mesh(MeshShape()))
        state, losses[products] = run_steps(program, [tokens] * steps)
    assert losses["fp8"] == pytest.approx(losses["plain"], rel=0.02)  # 3 bits of mantissa, averaged over 128 positions
    assert losses["fp8"][1:] != losses["plain"][1:]
    assert losses["fp8"][-1] < 0.9 * losses["fp8"][0]
    assert programs["fp8"].parameter_count == programs["plain"].parameter_count
    histories = [x for x in jax.tree.leaves(program.save(state)) if x.shape == (2, precision.HISTORY)]
    assert len(histories) == 9  # of three products: input, weights and output's gradient, by layer
    assert all(((np.asarray(x) > 0).sum(axis=1) == parts * steps).all() for x in histories)  # by microbatch


@pytest.mark.gpu
def test_on_a_gpu_with_fp8_the_product_is_one_of_cublas_and_equals_the_rounded_one() -> None:
    device: Any = jax.devices()[0]
    capability = tuple(map(int, str(device.compute_capability).split(".")))
    if capability < (8, 9):
        pytest.skip(f"compute capability {capability[0]}.{capability[1]}: FP8 products need 8.9 or newer")
    layer = make_linear(512, 256)
    graph, state = nnx.split(layer)
    x = jax.random.normal(jax.random.key(1), (256, 512))
    run = jax.jit(lambda state, x: nnx.merge(graph, state)(x)).lower(state, x)
    compiled = run.compile(compiler_options={"xla_gpu_enable_triton_gemm": False})
    assert "__cublas$lt$matmul$f8" in (compiled.as_text() or "")
    factors = (as_numpy(one.astype(jnp.bfloat16)) for one in (x, layer.kernel[...]))
    expected = np.matmul(*(rounded(factor, 1, "e4m3") for factor in factors))
    assert np.abs(as_numpy(compiled(state, x)) - expected).max() < 0.02 * np.abs(expected).max()


def test_the_gradient_of_counted_steps_is_one_more() -> None:
    gradient = jax.grad(lambda steps: count_step(jnp.ones(()), steps))(jnp.array([2.0]))
    assert gradient.tolist() == [3.0]
