"""Digests differ where the computation does, and name its line; names, moved lines and order of definition do not."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.digest import digest_lines, digest_program
from nightjar_models.program.module import Module, read_module

X = jnp.linspace(-1.0, 1.0, 64)


def compile_module(function: Any) -> Module:
    compiled: Any = jax.jit(function).lower(X, X).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    return read_module(pack_module(parse_module(module.as_serialized_hlo_module_proto())))


def plain(x: jax.Array, y: jax.Array) -> jax.Array:
    inverse = 1.0 / y.sum()
    kept = jnp.where(x < 0.5, x, y)
    return jnp.tanh(kept) * inverse + jnp.sort(x)[::2].sum()


def named_otherwise(left: jax.Array, right: jax.Array) -> jax.Array:
    total = right.sum()
    chosen = jnp.where(left < 0.5, left, right)
    result = jnp.tanh(chosen) * (1.0 / total)
    return result + jnp.sort(left)[::2].sum()


def other_constant(x: jax.Array, y: jax.Array) -> jax.Array:
    inverse = 1.0 / y.sum()
    kept = jnp.where(x < 0.25, x, y)
    return jnp.tanh(kept) * inverse + jnp.sort(x)[::2].sum()


def other_direction(x: jax.Array, y: jax.Array) -> jax.Array:
    inverse = 1.0 / y.sum()
    kept = jnp.where(x <= 0.5, x, y)
    return jnp.tanh(kept) * inverse + jnp.sort(x)[::2].sum()


def other_operand(x: jax.Array, y: jax.Array) -> jax.Array:
    inverse = 1.0 / y.sum()
    kept = jnp.where(x < 0.5, y, x)
    return jnp.tanh(kept) * inverse + jnp.sort(x)[::2].sum()


def other_stride(x: jax.Array, y: jax.Array) -> jax.Array:
    inverse = 1.0 / y.sum()
    kept = jnp.where(x < 0.5, x, y)
    return jnp.tanh(kept) * inverse + jnp.sort(x)[1::2].sum()


def test_the_same_computation_has_the_same_digest() -> None:
    assert digest_program(compile_module(plain)) == digest_program(compile_module(named_otherwise))


@pytest.mark.parametrize(
    ("changed", "line"), [(other_constant, 2), (other_direction, 2), (other_operand, 2), (other_stride, 3)]
)
def test_what_is_changed_and_its_line_have_other_digests(changed: Any, line: int) -> None:
    before, after = compile_module(plain), compile_module(changed)
    assert digest_program(before) != digest_program(after)
    lines = [
        {
            int(name.split()[0].split(":")[1]) - function.__code__.co_firstlineno: digest
            for name, digest in found.items()
        }
        for function, found in ((plain, digest_lines(before)), (changed, digest_lines(after)))
    ]
    assert line in lines[0]
    assert lines[0][line] != lines[1][line]
