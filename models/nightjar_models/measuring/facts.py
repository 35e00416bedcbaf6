"""Compile facts: exact counts and bytes of the optimized HLO, without noise.

In: a compiled program. Out: the `facts` of a `nightjar.run/1` document. They are read from the serialized HLO module,
not from its text, whose form changes between versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax

from nightjar_models.measuring.hlo import parse_module, size_bytes

Tally = dict[str, int]

COLLECTIVES = {
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
}


def read_facts(program: str, compiled: jax.stages.Compiled, flops: float | None = None) -> dict[str, Any]:
    """The facts of a compiled program.

    Args:
        program: name under which nights are compared.
        compiled: the result of `lowered.compile()`.
        flops: given if XLA's cost analysis, which is taken otherwise, leaves out too much.
    """
    executable: Any = compiled.runtime_executable()
    modules = [parse_module(module.as_serialized_hlo_module_proto()) for module in executable.hlo_modules()]
    if flops is None:
        flops = (compiled.cost_analysis() or {}).get("flops")
    return {
        "program": program,
        **tally_module(modules),
        "flops": None if flops is None or flops < 0 else float(flops),
        "memory": read_memory(compiled),
    }


def tally_module(modules: Iterable[Any]) -> dict[str, dict[str, Tally]]:
    """Counts and output bytes by opcode, fusion kind, custom-call target and collective, over all computations."""
    facts: dict[str, dict[str, Tally]] = {"opcodes": {}, "fusions": {}, "custom_calls": {}, "collectives": {}}
    for instruction in _instructions(modules):
        size = size_bytes(instruction.shape)
        _add(facts["opcodes"], instruction.opcode, size)
        if instruction.opcode == "fusion":
            _add(facts["fusions"], instruction.fusion_kind, size)
        elif instruction.opcode == "custom-call":
            _add(facts["custom_calls"], instruction.custom_call_target, size)
        # The `-start` of an asynchronous pair also yields its operands and context: the `-done` has the result alone.
        # A pair made of `async-start` wraps the collective, which is met in the wrapped computation.
        collective = instruction.opcode.removesuffix("-done")
        if collective in COLLECTIVES:
            _add(facts["collectives"], collective, size)
    return {kind: dict(sorted(tallies.items())) for kind, tallies in facts.items()}


def read_memory(compiled: jax.stages.Compiled) -> dict[str, int | None]:
    """Memory reserved by the compiler, in bytes; None if the backend does not report it."""
    stats = compiled.memory_analysis()
    names = ("argument_size", "output_size", "alias_size", "temp_size", "generated_code_size", "peak_memory")
    values = {name: getattr(stats, f"{name}_in_bytes", None) for name in names}
    if offloaded := getattr(stats, "host_temp_size_in_bytes", 0):
        values["host_temp_size"] = offloaded
    return {f"{name.removesuffix('_size').removesuffix('_memory')}_bytes": value for name, value in values.items()}


def _instructions(modules: Iterable[Any]) -> Iterator[Any]:
    for module in modules:
        for computation in module.computations:
            yield from computation.instructions


def _add(tallies: dict[str, Tally], name: str, size: int) -> None:
    tally = tallies.setdefault(name, {"count": 0, "bytes": 0})
    tally["count"] += 1
    tally["bytes"] += size
