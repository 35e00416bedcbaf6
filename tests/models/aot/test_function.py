"""A user's function is found, its arguments cost no memory, and its lines and variables have their names."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from nightjar_models.aot.function import (
    find_function,
    lower_function,
    make_abstract,
    make_arguments,
    make_mesh,
    name_variables,
    parse_shape,
    place_arguments,
)
from nightjar_models.errors import InputError
from tests.models.commands.test_compile import compile_program

SOURCE = """
import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(8, 16, rngs=rngs)
        self.outer = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))


@nnx.jit
def step(model, optimizer, x):
    def loss(model):
        return jnp.square(model(x)).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def make():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), jnp.zeros((32, 8))


def plain(w, x):
    return jnp.tanh(x @ w).sum()


class Tools:
    gradient = staticmethod(jax.jit(jax.grad(plain)))


def apply(layers, x):
    for w, activation in layers:
        x = activation(x @ w)
    return x.sum(), activation


def make_layers():
    return [(jnp.zeros((8, 8)), jax.nn.relu), (jnp.zeros((8, 8)), jnp.sin)], jnp.zeros((32, 8))


def split():
    rows = jax.sharding.PartitionSpec("data")
    return jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32, sharding=rows)


NUMBER = 3
"""


@pytest.fixture(autouse=True)
def _restore_path() -> Iterator[None]:
    """The folder of a user's program stays on the path, and another process that Python starts has the same path."""
    paths = list(sys.path)
    yield
    sys.path[:] = paths


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"program_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_an_address_is_a_module_or_a_file_and_may_have_dots(program: str) -> None:
    function = find_function(f"{program}:plain")
    assert function is find_function(f"{program}.py:plain")
    assert find_function(f"{program}:Tools.gradient")(jnp.zeros((8, 4)), jnp.ones((2, 8))).shape == (8, 4)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("plain", "expected module:function or file.py:function"),
        ("{}:plan", "has no 'plan'"),
        ("{}:NUMBER", "expected a function, found int"),
        ("missing.py:plain", "no such file: missing.py"),
        ("missing_module:plain", "importing missing_module: ModuleNotFoundError"),
    ],
)
def test_an_address_without_a_function_says_what_is_missing(program: str, address: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_function(address.format(program))


def test_a_module_that_fails_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        find_function(f"{tmp_path}/fails.py:step")


def test_a_file_with_the_name_of_another_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inspect.py").write_text("def step(): pass\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"the name inspect belongs to .*inspect\.py"):
        find_function(f"{tmp_path}/inspect.py:step")


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("f32[8,128]", (8, 128), "float32"),
        ("bf16[2]", (2,), "bfloat16"),
        ("i32[]", (), "int32"),
        ("s8[4]", (4,), "int8"),
        ("u8[3,3]", (3, 3), "uint8"),
        ("pred[5]", (5,), "bool"),
        ("float16[1]", (1,), "float16"),
        ("c64[2]", (2,), "complex64"),
        ("f8e4m3fn[2]", (2,), "float8_e4m3fn"),
    ],
)
def test_shapes_are_spelt_as_xla_or_numpy_do(text: str, shape: tuple[int, ...], dtype: str) -> None:
    parsed = parse_shape(text)
    assert (parsed.shape, parsed.dtype.name) == (shape, dtype)


@pytest.mark.parametrize("text", ["f32", "g32[1]", "f32[a]", "f32[1", "", "f33[2]"])
def test_what_is_not_a_shape_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected shapes|is not a type of JAX"):
        make_arguments(text)


def test_shapes_are_separated_outside_of_brackets() -> None:
    arguments = make_arguments("f32[8,4], i32[2,2],f32[]")
    assert [one.shape for one in arguments] == [(8, 4), (2, 2), ()]


def test_arguments_cost_no_memory_and_other_leaves_stay() -> None:
    def make() -> Any:
        return {"large": jnp.zeros((1 << 20, 1 << 20)), "act": jax.nn.relu}, 3

    abstract, number = make_abstract(make)
    assert abstract["large"] == jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)  # type: ignore[no-untyped-call]
    assert (abstract["act"], number) == (jax.nn.relu, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}:plain", "missing 2 required positional"), ("{}:Net.__call__", "TypeError"), ("{}:NUMBER", "found int")],
)
def test_a_function_of_arguments_that_fails_is_named(program: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_arguments(text.format(program))


def test_a_step_of_nnx_is_lowered_as_with_real_arguments(program: str) -> None:
    step, make = find_function(f"{program}:step"), find_function(f"{program}:make")
    arguments = make_arguments(f"{program}:make")
    assert lower_function(step, arguments).as_text() == step.lower(*make()).lowered.as_text()
    names = name_variables(step, arguments)
    assert names["model"] == ("inner.bias", "inner.kernel", "outer.bias", "outer.kernel")
    assert "opt_state.0.mu.inner.kernel" in names["optimizer"]


def test_a_plain_function_of_modules_keeps_what_it_changes() -> None:
    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(jnp.zeros((3,)))

    def tick(counter: Counter) -> None:
        counter.count[...] += 1.0

    lowered = lower_function(tick, make_abstract(lambda: (Counter(),)))
    assert "stablehlo.add" in lowered.as_text()


def test_a_plain_function_takes_leaves_that_are_not_arrays(program: str) -> None:
    arguments = make_arguments(f"{program}:make_layers")
    text = lower_function(find_function(f"{program}:apply"), arguments).as_text()
    assert text.count("stablehlo.dot_general") == 2
    assert "stablehlo.maximum" in text or "@relu" in text


def test_plain_jax_and_optax_with_two_arguments_keep_their_order() -> None:
    optimizer = optax.sgd(0.1)

    def step(z: Any, key: Any, a: Any) -> Any:
        return optimizer.update(jax.grad(lambda w: (w * a).sum())(z), optimizer.init(z))[0]

    shapes = make_arguments("f32[3],u32[2],f32[3]")
    lowered = lower_function(step, shapes)
    assert [one.dtype.name for one in jax.tree.leaves(lowered.in_avals)].count("uint32") == 1
    assert lowered.out_info[0].dtype == jnp.float32


@pytest.mark.parametrize("text", ["data=2", "data=1,data=1", "x4", "data=0"])
def test_a_mesh_that_is_not_one_of_all_devices_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        make_mesh(jax.devices()[:1], text)


def test_an_axis_that_the_mesh_lacks_is_refused() -> None:
    mesh, other = make_mesh(jax.devices()[:1], "data=1"), make_mesh(jax.devices()[:1], "model=1")
    rows = jax.sharding.NamedSharding(other, jax.sharding.PartitionSpec("model"))  # type: ignore[no-untyped-call]
    shape = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=rows)  # type: ignore[no-untyped-call]
    with pytest.raises(InputError, match="model"):
        place_arguments((shape,), mesh, "split")


@pytest.mark.slow
def test_the_command_compiles_a_function_for_this_cpu(program: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = compile_program(f"{program}:step", "--args", f"{program}:make", "--out", str(out), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "model.inner.kernel" in done.stdout
    assert "estimated step" not in done.stdout
    document = json.loads((out / "result.json").read_text(encoding="utf-8"))
    (facts,) = document["facts"]
    assert (facts["program"], facts["ahead"]["target"], facts["ahead"]["estimate"]) == ("step", "cpux1", {})
    lines = facts["ahead"]["lines"]
    products = {
        line.split()[0]: work["opcodes"]["dot"]["count"] for line, work in lines.items() if "dot" in work["opcodes"]
    }
    outer = next(number for number, line in enumerate(SOURCE.splitlines(), start=1) if "self.outer(" in line)
    assert products[f"{program}.py:{outer}"] >= 2  # two products, fused or not, and their gradients
    assert not list(out.glob("capture"))


def test_a_function_is_split_over_devices_as_its_arguments_say(program: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--args", f"{program}:split", "--target", "cpux2", "--mesh", "data=2", "--out", str(out))
    done = compile_program(f"{program}:plain", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads((out / "result.json").read_text(encoding="utf-8"))["facts"]
    assert list(facts["ahead"]["messages"]) == ["all-reduce/2"]  # of the sum over the rows of both


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{}:plain", "--args", "f32[8,4],f32[32,9]"), "tracing it: TypeError"),
        (("{}:plain", "--set", "batch_size=2"), "--set: expected with a preset"),
        (("gpt_tiny", "--args", "f32[1]"), "--args: expected with a function"),
        (("{}:plain", "--target", "h900"), "--target h900"),
    ],
)
def test_wrong_input_is_named(program: str, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    given = [one.format(program) for one in arguments]
    done = compile_program(*given, "--out", str(tmp_path / "out"), cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
