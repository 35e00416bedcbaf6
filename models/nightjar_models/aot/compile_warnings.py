"""Warnings about a compiled step.

In: the compiler's log, the `Module`, and the attention that was configured and chosen while the step was traced. Out:
one sentence each for fused attention that is missing, shardings that required a copy of a whole array, products that
several devices repeat, and instructions whose cost cannot be counted. The sentences are compared with a baseline's: a
change of wording is a new warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from nightjar_models.kernels.fused_attention import CUDNN
from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.cost import count_cost
from nightjar_models.program.kernels import ATTENTION, kernel_kind
from nightjar_models.program.module import Module, read_module
from nightjar_models.program.replica_groups import collective_kind, names_group

MOST_REPEATED = 0.1  # of a step's products; less is a head or a router that is computed everywhere on purpose
_REMATERIALIZED = re.compile(r"[Ii]nvoluntary full rematerialization[^\n]*")


def find_warnings(log: str, module: Module, configured: str, choices: Collection[str]) -> tuple[str, ...]:
    """The warnings, a sentence each.

    Args:
        configured: the implementation of attention in the config.
        choices: the implementations that were used, as `fused_attention.note_choices` collects them.
    """
    return (*_attention(module, configured, choices), *_copied(log), *_uncounted(module))


def _attention(module: Module, configured: str, choices: Collection[str]) -> Iterator[str]:
    if configured != CUDNN:
        return
    fused = any(kernel_kind(instruction).startswith(ATTENTION) for instruction, _ in module.executed())
    missing = ""
    if not fused:
        missing = ", and no cuDNN attention kernel came out"
    refused = sorted(choice for choice in choices if choice != CUDNN)
    for choice in refused:
        yield f"attention: cudnn was asked for, {choice} was taken{missing}"
    if missing and not refused:
        yield f"attention: cudnn was asked for{missing}"


def _copied(log: str) -> Iterator[str]:
    if count := len(_REMATERIALIZED.findall(log)):
        yield f"involuntary full rematerialization: {count} times"


def _uncounted(module: Module) -> Iterator[str]:
    for instruction, _ in module.executed():
        if collective_kind(instruction) and not names_group(instruction):
            yield f"collective {instruction.name}: no group is named in a known form, all devices are assumed"
    for name in (one.name for one in module.instructions.values() if one.opcode == "conditional"):
        yield f"conditional {name}: all of its branches are counted, and a step runs one"
    for name in module.unknown_loops:
        yield f"loop {name}: its trip count is not known, one is assumed"


def find_repeated(lowered: Any, module: Module, devices: int) -> tuple[str, ...]:
    """A sentence if devices repeat each other's matrix products, as they do where a stream lost its sharding.

    If a device computes more than its share of a line's product, others compute the same; eight devices that hold four
    parts compute each part twice.

    Args:
        lowered: the result of `jax.jit(...).lower`, whose products are whole.
        module: the compiled program of one device.
    """
    if devices == 1:
        return ()
    traced = pack_module(parse_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()))
    # All products of a line, its gradients' too: XLA merges products of one operand into one.
    whole: dict[str, float] = {}
    for line, flops, _ in _list_products(read_module(traced)):
        whole[line] = whole.get(line, 0.0) + flops
    total, repeated = 0.0, dict.fromkeys(whole, 0.0)
    for line, flops, runs in _list_products(module):
        total += flops * runs
        if line in whole:
            repeated[line] += max(0.0, flops - whole[line] / devices) * runs
    share = sum(repeated.values()) / max(total, 1.0)
    if share <= MOST_REPEATED:
        return ()
    return (
        f"{share:.0%} of the matrix products are repeated by several devices, most of them in "
        f"{max(repeated, key=lambda line: repeated[line])}: split their input with jax.lax.with_sharding_constraint",
    )


def _list_products(module: Module) -> Iterator[tuple[str, float, int]]:
    """Line, FLOPs of one run, and runs in a step of each matrix product, inside of fusions, too.

    Without fused attention, and without the body of a `shard_map`, whose products are each device's own.
    """
    for instruction, runs in module.executed():
        inside = [instruction]
        if instruction.opcode == "fusion":
            inside = [
                inner for key in instruction.called_computation_ids for inner in module.computations[key].instructions
            ]
        for inner in inside:
            product = inner.opcode == "dot" or inner.custom_call_target.startswith("__cublas$")
            if product and "shard_map" not in inner.metadata.op_name:
                yield str(module.line(inner)), count_cost(module, inner).product_flops, runs
