"""Products that devices repeat, in the programs of a device."""

from typing import Any

import jax
import jax.numpy as jnp

from nightjar_models.aot.compile_warnings import find_repeated
from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.module import read_module


def test_products_that_two_devices_repeat_are_told_with_their_line() -> None:
    """One device computes the whole of both products here: of two, each would compute half too much."""

    def step(x: jax.Array, y: jax.Array) -> jax.Array:
        small = jnp.tanh(y[:16, :16] @ y[:16, :16])
        return jnp.tanh(x @ x) + small.sum()

    lowered = jax.jit(step).lower(jnp.ones((32, 32)), jnp.ones((32, 32)))
    executable: Any = lowered.compile().runtime_executable()
    (compiled,) = executable.hlo_modules()
    module = read_module(pack_module(parse_module(compiled.as_serialized_hlo_module_proto())))
    line = step.__code__.co_firstlineno + 2
    assert find_repeated(lowered, module, 1) == ()
    (warning,) = find_repeated(lowered, module, 2)
    assert warning.startswith("50% of the matrix products are repeated by several devices, most of them in ")
    assert f"test_compile_warnings.py:{line}" in warning
