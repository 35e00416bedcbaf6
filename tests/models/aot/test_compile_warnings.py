"""Products that devices repeat, in the programs of a device."""

from typing import Any

import jax
import jax.numpy as jnp

from nightjar_models.aot.compile_warnings import find_repeated
from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.module import read_module


def test_a_product_that_two_devices_repeat_is_told_with_its_line() -> None:
    lowered = jax.jit(lambda x: jnp.tanh(x @ x)).lower(jnp.ones((32, 32)))
    executable: Any = lowered.compile().runtime_executable()
    module = read_module(pack_module(parse_module(executable.hlo_modules()[0].as_serialized_hlo_module_proto())))
    assert find_repeated(lowered, module, 1) == ()
    (warning,) = find_repeated(lowered, module, 2)  # this one computes all of it, and not half
    assert warning.startswith("50% of the matrix products are repeated by several devices, most of them in ")
    assert "test_compile_warnings.py:14" in warning
