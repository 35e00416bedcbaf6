"""Floating-point operations of a compiled step, loops and library calls included.

In: a compiled program. Out: its operations in one step on one device. XLA's own cost analysis counts the body of a loop
once, and on a GPU knows neither cuBLAS nor cuDNN, which do most of the work.
"""

from __future__ import annotations

from typing import Any

import jax

from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.kernels import tally_kernels
from nightjar_models.program.module import Module, read_module


def count_flops(module: Module) -> float:
    """The operations of a module; a loop whose trips the compiler does not know counts once."""
    return sum(work.flops for work in tally_kernels(module).values())


def count_flops_on_gpu(compiled: jax.stages.Compiled) -> float | None:
    """The operations of a program for GPUs; None for another platform, since XLA knows all that runs there."""
    executable: Any = compiled.runtime_executable()
    if executable.local_devices()[0].platform != "gpu":
        return None
    modules = [pack_module(parse_module(one.as_serialized_hlo_module_proto())) for one in executable.hlo_modules()]
    return sum(count_flops(read_module(module)) for module in modules)
