"""A program against what the compiler makes of it, on one device and split over a mesh."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.canaries import swapped_rows
from nightjar_models.explain.compiled import explain_compiled, find_first, measure, move
from nightjar_models.explain.environments import CRASH
from nightjar_models.explain.flat import flatten
from nightjar_models.explain.judge import MOST_ROUNDINGS, compare
from nightjar_models.explain.program import trace_function
from nightjar_models.explain.reduce import MOST_LINES
from nightjar_models.program.interpreter import Interpreter
from tests.models.conftest import SMALL_OPTIONS, Command

ONES = np.ones(4, np.float32)
EIGHT = f"{swapped_rows.DEVICES} --xla_backend_optimization_level=0"


def find_line(program: str) -> int:
    return next(number for number, text in enumerate(program.splitlines(), 1) if text.endswith("# this line"))


def test_a_result_may_move_as_far_as_rounding_moves_it() -> None:
    near = ONES + np.float32(2**-20)
    for excess in (MOST_ROUNDINGS / 2, MOST_ROUNDINGS, MOST_ROUNDINGS * 2):
        found = measure([ONES, ONES], [near, near], [ONES, ONES + np.float32(excess * 2**-20)])
        assert (found.number, found.excess, found.relative) == (1, excess, excess * 2**-20)
    assert measure([ONES], [ONES], [ONES]).excess == 0


def test_a_result_that_rounding_leaves_alone_may_move_by_units_in_the_last_place() -> None:
    assert measure([ONES], [ONES], [ONES + np.float32(2**-22)]).excess == 2
    zero, noise = np.zeros(2, np.float32), np.full(2, 1e-9, np.float32)
    assert measure([zero + noise], [zero - noise], [zero]).excess == pytest.approx(0.5)  # zero but for its rounding


def test_infinities_are_a_difference_unless_rounding_makes_them() -> None:
    infinite = np.array([1, np.inf, 1, 1], np.float32)
    assert measure([ONES], [ONES], [infinite]).excess == np.inf
    assert measure([ONES], [infinite], [infinite]).excess == 0
    assert measure([infinite], [infinite], [infinite]).excess == 0
    for other in (-infinite, np.where(np.isinf(infinite), np.nan, infinite)):
        assert measure([infinite], [infinite], [other]).excess == np.inf
        assert compare(infinite, other) == (np.inf, np.inf)


def test_a_number_that_is_equal_on_both_sides_hides_no_difference() -> None:
    masked = np.array([1, 2, 3, -1e9, -1e9, -1e9, -1e9], np.float32)
    other = np.where(masked > 0, masked * 1.1, masked).astype(np.float32)
    assert compare(masked, other) == pytest.approx((0.1, 0.1 * 2**23), rel=1e-4)
    assert measure([masked], [masked], [other]).relative == pytest.approx(0.1, rel=1e-4)
    little, moved = (np.array([1e6, 1, rest], np.float32) for rest in (1e-4, 2e-4))  # what is left of a sum near 1
    assert compare(little, moved) == pytest.approx((1e-4, 839), rel=0.01)


def test_integers_are_equal_unless_rounding_moves_them_and_are_not_moved() -> None:
    whole, zeros = np.arange(3), np.zeros(3, int)
    assert [measure([whole], [near], [zeros]).excess for near in (whole, zeros)] == [np.inf, 0]
    assert measure([1j * ONES], [1j * ONES], [1j * (ONES + np.float32(2**-22))]).excess == 2  # complex numbers round
    whole, moved = move([np.arange(3), ONES], 2**-8)
    assert whole.tolist() == [0, 1, 2]
    assert sorted(set(np.abs(np.asarray(moved) - 1).tolist())) == [2**-8]


def test_a_cut_gives_what_the_rest_of_the_program_takes() -> None:
    def program(x: jax.Array) -> jax.Array:
        y = jax.jit(jnp.sin)(x)
        return jnp.asarray(jnp.sum(y * y) + jnp.where(y[0] > 0, 1, y[0]))

    flat = flatten(trace_function(program, (ONES,)))
    (sine,) = flat.cut(1).jaxpr.jaxpr.outvars
    assert (sine.aval.shape, len(flat.places)) == ((4,), len(flat.operations))
    assert flat.places[0].startswith("test_compiled.py:")


def test_a_compiled_program_of_many_kinds_of_operations_differs_by_rounding_alone() -> None:
    def program(x: jax.Array, key: jax.Array) -> jax.Array:
        x = jax.nn.dropout(x, 0.5, key) if hasattr(jax.nn, "dropout") else x * jax.random.bernoulli(key, 0.5, x.shape)
        x, _ = jax.lax.scan(lambda carry, row: (jnp.tanh(carry @ carry.T) + row, None), x, jnp.arange(3.0))
        x = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
        return jnp.sum(jax.checkpoint(jax.nn.softmax)(jnp.sort(x)))

    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)), jnp.float32)
    found = explain_compiled(trace_function(jax.grad(program), (x, jax.random.key(0))), lambda _: None)
    assert found is None or found.kind == "rounding", str(found)


def test_the_first_line_that_differs_is_found_among_hundreds_of_the_same_lines() -> None:
    def program(x: jax.Array, factor: float) -> jax.Array:
        x = x if factor == 1 else x + 0
        for turn in range(100):
            x = jnp.cos(x)
            x = x * (factor if turn == 70 else 1.0)  # this line
        return x

    one, many = (trace_function(partial(program, factor=factor), (ONES,)) for factor in (1.0, 1.5))
    where = find_first(one, many, move(one.arguments, 2.0**-23))
    assert where.partition(",")[0] == f"test_compiled.py:{find_line(Path(__file__).read_text())}"


SWAPPED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
rows, weight = NamedSharding(mesh, P(("data", "fsdp"), "tensor")), NamedSharding(mesh, P("fsdp", "tensor"))
multiply = jax.jit(lambda x, w: x @ w.T, in_shardings=(rows, weight), out_shardings=rows)
def step(x, w):
    y = jax.numpy.tanh(x)
    z = multiply(y, w)  # this line
    return (z ** 2).sum(), z + 1
"""


@pytest.mark.slow
def test_a_product_that_the_partitioner_breaks_is_named_by_its_line(nightjar_models: Command, tmp_path: Path) -> None:
    (tmp_path / "sharded.py").write_text(SWAPPED)
    arguments = (
        "sharded.py:step",
        "--against",
        "compiled",
        "--args",
        "f32[16,16],f32[16,16]",
        "--json",
        "--reduce",
        "small.py",
    )
    done = nightjar_models("explain", *arguments, XLA_FLAGS=EIGHT)
    if done.returncode == 0:
        pytest.skip("this jaxlib splits the product rightly")
    answer = json.loads(done.stdout)
    assert (answer["kind"], answer["where"].partition(",")[0]) == ("fault", f"sharded.py:{find_line(SWAPPED)}")
    small = (tmp_path / "small.py").read_text()
    assert ("dot_general" in small, "tanh" in small, len(small.splitlines()) <= MOST_LINES) == (True, False, True)


CRASHES = """
import jax
def arguments():
    return tuple(jax.random.uniform(jax.random.key(seed), (3, 1, 2, 2, 8, 8, 8)) for seed in (0, 1))
def contract(one, other):
    product = one * other
    return product.sum(axis=3)  # this line
"""


@pytest.mark.slow
def test_a_compiled_program_that_ends_its_process_is_an_answer(nightjar_models: Command, tmp_path: Path) -> None:
    (tmp_path / "seven.py").write_text(CRASHES)
    arguments = ("seven.py:contract", "--against", "compiled", "--args", "seven.py:arguments", "--json")
    done = nightjar_models("explain", *arguments, "--reduce", "small.py")
    if done.returncode == 0:
        pytest.skip("this jaxlib multiplies seven dimensions")
    answer = json.loads(done.stdout)
    assert (answer["kind"], answer["where"].partition(",")[0]) == (CRASH, f"seven.py:{find_line(CRASHES)}")
    small = (tmp_path / "small.py").read_text()
    assert ("reduce_sum" in small, len(small.splitlines()) <= MOST_LINES) == (True, True)


@pytest.mark.slow
def test_a_preset_over_a_mesh_differs_by_rounding_alone(nightjar_models: Command) -> None:
    settings = (*SMALL_OPTIONS, "--set", "model.layers=2", "--set", "compute.scan_layers=true")
    done = nightjar_models("explain", "gpt_tiny", "--against", "mesh=pp2.fsdp2.sp2", *settings, XLA_FLAGS=EIGHT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no difference")


LOST = """
from nightjar_models.cli import main
from nightjar_models.training.idioms import ShardMapProgram
whole = ShardMapProgram.gradient
def gradient(self, tree, batch):
    value, gradients = whole(self, tree, batch)
    gradients["norm"]["scale"] = gradients["norm"]["scale"] / self.mesh.size  # this line
    return value, gradients
ShardMapProgram.gradient = gradient
main()
"""


@pytest.mark.slow
def test_a_gradient_that_is_not_summed_over_devices_is_named(compiled: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST)
    command = ["lost.py", "explain", "gpt_tiny", "--against", "mesh=dp2", "--json"]
    settings = [*SMALL_OPTIONS, "--set", "idiom=shard_map"]
    environ = {**os.environ, **compiled, "XLA_FLAGS": EIGHT}
    done = subprocess.run(
        [sys.executable, *command, *settings], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    place = answer["where"].partition(",")[0]
    assert (answer["kind"], answer["result"], place) == ("fault", "result.1.norm.scale", f"lost.py:{find_line(LOST)}")


def test_a_loop_of_no_turns_is_one_operation() -> None:
    def stack(x: Any) -> Any:
        return jax.lax.scan(lambda carry, row: (carry + row, carry), x.sum(), x[:0])[1]

    closed = jax.make_jaxpr(stack)(jnp.ones(3))
    interpreter = Interpreter(lambda _equation, _values, results, _layer: results)
    assert [value.shape for value in interpreter.run(closed, [jnp.ones(3)])] == [(0,)]
