"""A difference as one small file that needs JAX alone."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.errors import ToolError
from nightjar_models.explain.environments import Other
from nightjar_models.explain.flat import flatten
from nightjar_models.explain.judge import Difference
from nightjar_models.explain.program import Traced, trace, trace_function
from nightjar_models.explain.reduce import (
    MOST_LINES,
    capture,
    cut,
    cut_both,
    find_sources,
    reduce_compiled,
    reduce_programs,
    reproduces,
)
from nightjar_models.explain.source import WIDTH, NoSourceError, wrap, write_function, write_imports, write_input
from tests.models.conftest import Command
from tests.models.explain.test_explain import ARGUMENTS, FILE, compare

X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16)), jnp.float32)


def run(text: str) -> dict[str, Any]:
    defined: dict[str, Any] = {}
    exec(text, defined)
    return defined


def test_operations_of_many_kinds_are_written_as_code_that_gives_the_same_numbers() -> None:
    def program(x: jax.Array, key: jax.Array) -> jax.Array:
        x = jax.random.permutation(key, x) + jax.random.normal(key, x.shape)
        order = jnp.argsort(x[:, 0])
        x = jnp.concatenate([x[order], jnp.sort(x, axis=1)], axis=1).astype(jnp.bfloat16)
        x = jax.lax.dynamic_slice(x, (jnp.argmax(x[:, 0]), 1), (4, 8)).at[jnp.array([1, 2])].add(1)
        x = jax.lax.conv(x[None, None], jnp.ones((1, 1, 3, 3), x.dtype), (1, 1), "SAME")[0, 0]
        x = jnp.where(jnp.arange(8) > 3, jnp.cumsum(x, axis=1), -jnp.inf)
        first, second = jnp.split(jnp.clip(jnp.einsum("ij,kj->ik", x[:, 4:], x[:, 4:], precision="highest"), -9, 9), 2)
        return first + jax.lax.top_k(second, 4)[0]

    arguments = (X, jax.random.key(3))
    flat = flatten(trace_function(program, arguments))
    steps = capture(Traced(flat.closed, list(arguments), ()), range(len(flat.places)), by_value=False, whole=True)
    side = cut("here.py:7", steps, steps[-1], (), ())
    names = dict(zip(side.find_inputs(), "abcdefgh", strict=False))
    function = write_function("one", side.place, names, side.steps, side.result)
    defined = run("\n".join([*write_imports("\n".join(function), side.steps), *function]))
    given = side.find_inputs().values()
    np.testing.assert_array_equal(defined["one"](*given), program(*arguments))


def test_an_array_is_written_out_if_it_is_small_and_else_drawn_with_its_scale() -> None:
    numbers = {
        "jnp.full((3, 2), 1.5, 'float32')": jnp.full((3, 2), 1.5),
        "jnp.asarray([0.100098, -np.inf, np.nan, 2, 3, 4, 5, 6], 'bfloat16')": jnp.array(
            [0.1, -jnp.inf, jnp.nan, 2, 3, 4, 5, 6], jnp.bfloat16
        ),
        "jnp.asarray(rng.integers(0, 9, (9,)), 'int32')": jnp.arange(9),
        "jnp.asarray(rng.uniform(0, 8, (9,)), 'float32')": jnp.arange(9.0),
        "jax.random.wrap_key_data(np.array([0, 3], 'uint32'))": jax.random.key(3),
    }
    for text, value in numbers.items():
        assert write_input(value, literal=False) == text
    assert write_input(jnp.arange(9), literal=True) == "jnp.asarray([0, 1, 2, 3, 4, 5, 6, 7, 8], 'int32')"
    assert write_input(jnp.arange(9) > 3, literal=False) == "jnp.asarray(rng.random((9,)) < 0.56)"
    assert write_input(X, literal=False).startswith("jnp.asarray(rng.normal(")
    written = [write_input(jnp.arange(size), literal=True) for size in (399, 400, 401)]
    assert ["rng" in text for text in written] == [False, False, True]


def test_a_loop_or_a_callback_has_no_source() -> None:
    traced = trace_function(lambda x: jax.pure_callback(np.tanh, x, x), (X,))
    (step,) = capture(traced, [0], by_value=False)
    with pytest.raises(NoSourceError):
        write_function("one", "", dict.fromkeys(step.given, "a"), [step], step.made[0])


def test_an_input_that_is_made_from_another_one_is_no_input() -> None:
    def centre(x: jax.Array) -> jax.Array:
        return (x - x.sum(0)) * 2

    def other(x: jax.Array) -> jax.Array:
        return (x - x.sum(0)) * 3

    steps = [capture(trace_function(one, (X,)), range(9), by_value=True) for one in (centre, other)]
    names = [step.name for step in steps[0]]
    known = {key.partition("-")[2] for step in steps[0][:-1] for key in (*step.given, *step.made)}
    sources = find_sources([*steps[0], *steps[1]])
    last = [side[names.index("mul")] for side in steps]
    *_, sides = cut_both(["a", "b"], steps, last, known, sources)
    assert [[step.name for step in side.steps] for side in sides] == [["mul"], ["mul"]]  # x - its sum is one array
    last = [side[names.index("sub")] for side in steps]
    *_, (one, _) = cut_both(["a", "b"], steps, last, known, sources)
    assert next(step.name for step in one.steps) == "reduce_sum"  # not x and its sum


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mask", *(pytest.param(name, marks=pytest.mark.weekly) for name in ("softmax", "order"))]
)
def test_a_planted_difference_becomes_a_file_that_shows_it(name: str, tmp_path: Path) -> None:
    left, right = (trace(f"{FILE}:{one}", ARGUMENTS, ()) for one in ("base", name))
    difference = compare("base", name)
    assert difference is not None
    text = reduce_programs(left, right, difference)
    assert len(text.splitlines()) <= MOST_LINES
    (tmp_path / "file.py").write_text(text)
    shown = subprocess.check_output([sys.executable, "-I", "file.py"], cwd=tmp_path, text=True)
    assert shown.startswith(f"{jax.__version__} differ by ")
    with pytest.raises(ToolError, match="equal now"):
        reduce_programs(left, left, difference)


@pytest.mark.weekly
def test_another_environment_gets_the_operation_alone(called: Command, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    done = called("explain", f"{FILE}:base", "--against", "isa=SSE4_2", "--args", ARGUMENTS, "--reduce", str(file))
    if "no difference" in done.stdout:
        pytest.skip("no difference between these instruction sets here")
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert "XLA_FLAGS='--xla_cpu_max_isa=SSE4_2' python FILE" in text.replace("\n    ", " ")
    assert len(text.splitlines()) <= MOST_LINES


def test_what_no_short_file_shows_is_said() -> None:
    left = trace_function(lambda x: jax.pure_callback(np.tanh, x, x), (X,))
    right = trace_function(lambda x: jax.pure_callback(np.cosh, x, x), (X,))
    with pytest.raises(ToolError, match=f"no file of {MOST_LINES} lines"):
        reduce_programs(left, right, Difference(kind="fault", where="a"))
    with pytest.raises(ToolError, match="no operation is wrong by itself"):
        reduce_compiled(left, Difference(kind="rounding", where=""))


@pytest.mark.parametrize(
    ("sides", "shown"),
    [
        ([("0.9 1.5", 0), ("0.10 1.5", 0)], False),  # the first word is the version of JAX
        ([("0.9 1.5", 0), ("0.9 1.25", 0)], True),
        ([("0.9 1.5", 0), ("", -6)], True),
        ([("0.9 1.5", 0), ("", 1)], False),  # the second side refuses the file
        ([("0.9 1.5", 1), ("0.9 1.25", 0)], False),
        ([("", -6), ("", -6)], False),
        ([("0.9 differ by 0.5 of it", 0)], True),
        ([("0.9 differ by 0.0 of it", 0)], False),
        ([("", -6)], True),
        ([("", 1)], False),
    ],
)
def test_a_file_shows_a_difference_by_its_output_or_a_crash_of_the_second(
    sides: list[tuple[str, int]], shown: bool
) -> None:
    program = "import os, sys; print({!r}, flush=True); {} < 0 and os.abort(); sys.exit({})"
    others = [
        Other(python=(sys.executable, "-c", program.format(text, code, code)), variables={}) for text, code in sides
    ]
    assert reproduces("", others) is shown


def test_a_long_line_is_broken_between_words_and_its_rest_is_indented() -> None:
    word = "x" * (WIDTH // 2 - 4)
    assert wrap(f"    f({word}, {word}, {word})") == [f"    f({word},", f"        {word},", f"        {word})"]
    assert wrap("    " + "x" * (WIDTH - 4)) == ["    " + "x" * (WIDTH - 4)]
    assert wrap(f"    t = {'a-' * WIDTH}") == ["    t =", f"        {'a-' * WIDTH}"]
