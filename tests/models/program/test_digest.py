"""Digests differ where the computation does, and name its line; names, moved lines and order of definition do not."""

import operator
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


def make_program(limit: float = 0.5, *, compare: Any = operator.lt, swapped: bool = False, start: int = 0) -> Any:
    def program(x: jax.Array, y: jax.Array) -> jax.Array:
        inverse = 1.0 / y.sum()
        kept = jnp.where(compare(x, limit), *((y, x) if swapped else (x, y)))
        return jnp.tanh(kept) * inverse + jnp.sort(x)[start::2].sum()

    return program


def named_otherwise(left: jax.Array, right: jax.Array) -> jax.Array:
    total = right.sum()
    chosen = jnp.where(left < 0.5, left, right)
    result = jnp.tanh(chosen) * (1.0 / total)
    return result + jnp.sort(left)[::2].sum()


def test_the_same_computation_has_the_same_digest() -> None:
    assert digest_program(compile_module(make_program())) == digest_program(compile_module(named_otherwise))


@pytest.mark.parametrize(
    ("change", "line"), [({"limit": 0.25}, 2), ({"compare": operator.le}, 2), ({"swapped": True}, 2), ({"start": 1}, 3)]
)
def test_what_is_changed_and_its_line_have_other_digests(change: dict[str, Any], line: int) -> None:
    functions = make_program(), make_program(**change)
    before, after = map(compile_module, functions)
    assert digest_program(before) != digest_program(after)
    lines = [
        {
            int(name.split()[0].split(":")[1]) - function.__code__.co_firstlineno: digest
            for name, digest in found.items()
        }
        for function, found in zip(functions, (digest_lines(before), digest_lines(after)), strict=True)
    ]
    assert line in lines[0]
    assert lines[0][line] != lines[1][line]
