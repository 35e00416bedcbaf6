"""Modules and phases of instructions, from JAX's name stack.

In: a program and the names of the instructions that ran. Out: for each, its module and phase of a training step, with
weights that sum to 1: a fusion holds work of several modules, and is split as for lines.

A module's path joins its `named_scope`, which Linen and Haiku set for each module (`Model/head/out`), Equinox for its
own layers, and a program as it likes, and the classes whose `__call__` or `__init__` is on the Python stack. What the
compiler made without a name is of the module whose stack it was given; copies of arguments into results are `PASSED`.
The phase is `backward` inside `transpose`, `remat` if a
forward pass is computed again, `forward` inside `jvp`, and `optimizer` if a program with a backward pass runs code of
an optimizer; else `other`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from nightjar_profiling.attribution.attribute import Attribution
from nightjar_profiling.attribution.fusion_cost import split_cost
from nightjar_profiling.hlo.hlo import Instruction, Program

Phase = Literal["forward", "backward", "remat", "optimizer", "other"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "remat", "optimizer", "other")
TRANSFORM = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
# Parts that JAX's own control flow and calls put into a name stack, and `jnp.einsum` (its formula).
STRUCTURE = re.compile(
    r"while|body|cond|scan|checkpoint|remat\d*|rematted_computation|closed_call|core_call|xla_call|pjit|shard_map"
    r"|custom_[jv][jv]p_call\w*|branch_\d+_fun|body_fun|cond_fun|run_state"
    r"|[\w.,\s]*->[\w.\s]*"
)
CALL = re.compile(r"(?:.*\.)?(\w+)\.__(?:call|init)__")
PASSED = "(arguments returned unchanged)"
TRANSFORMERS = ("Wrapper", "Wrapped", "Fn", "Meta")  # suffixes of transformations and module factories
OPTIMIZER = re.compile(r"/optax/|optimi[sz]er|apply_updates|apply_gradients", re.IGNORECASE)


def split_scope(op_name: str) -> tuple[tuple[str, ...], Phase]:
    """The modules and the phase in the name stack of an operation; the optimizer is not distinguished from other work.

    >>> split_scope("jit(step)/transpose(jvp(Model))/head/out/dot_general")
    (('Model', 'head', 'out'), 'backward')
    >>> split_scope("jit(step)/jit(relu)/max")
    ((), 'other')
    >>> split_scope("jit(step)/jvp(decoder)/bqd,dhk->bhqk/dot_general")
    (('decoder',), 'forward')
    """
    first = op_name.split(";")[0]
    transforms: set[str] = set()
    path: list[str] = []
    for part in _split(first)[:-1]:
        for name in _unwrap(part, transforms):
            if not path or path[-1] != name:
                path.append(name)
    phase: Phase = "other"
    if "rematted_computation" in first:
        phase = "remat"
    elif "transpose" in transforms:
        phase = "backward"
    elif "jvp" in transforms:
        phase = "forward"
    return tuple(path), phase


def _split(text: str) -> list[str]:
    """The parts between the slashes outside parentheses."""
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "/" and depth <= 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]


def _unwrap(part: str, transforms: set[str]) -> Iterator[str]:
    """The modules in a part of a name stack, such as `transpose(jvp(Model))`."""
    match = TRANSFORM.fullmatch(part)
    if match is None:
        if part and not STRUCTURE.fullmatch(part):
            yield part
    elif match[1] not in ("jit", "pjit"):
        transforms.add(match[1])
        for inner in _split(match[2]):
            yield from _unwrap(inner, transforms)


def join_path(scope: tuple[str, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """A module's path from its named scope and the classes on its stack.

    >>> join_path(("Model", "out"), ("Model", "Dense")), join_path(("eqx.nn.GRUCell",), ("RNN", "GRUCell"))
    (('Model', 'out'), ('RNN', 'GRUCell'))
    >>> join_path(("attention",), ("Net", "Block"))
    ('Net', 'Block', 'attention')
    """
    scope = tuple(name.removeprefix("eqx.nn.") for name in scope)
    if len(scope) >= len(classes):  # a scope for each module
        return scope
    plain = [name.lower() for name in classes]
    for number, name in enumerate(scope):
        short = re.sub(r"_\d+$|_", "", name.lower())
        if short in plain:
            return (*classes[: max(plain.index(short) - number, 0)], *scope)
    return (*classes, *scope)


def find_scopes(program: Program, found: Iterable[Attribution]) -> list[dict[str, Any]]:
    """The rows of the table `scopes` of instructions that ran."""
    given = {one.instruction: one for one in found}
    op_names = {one.frame_id: one.op_name for one in program.instructions.values() if one.op_name}
    trains = any("transpose(" in instruction.op_name for instruction in program.instructions.values())
    classes: dict[int | None, tuple[tuple[str, ...], bool]] = {}
    rows = []
    for name, one in given.items():
        if name not in program.instructions:
            continue
        weights: dict[tuple[str, Phase], float] = defaultdict(float)
        for part, cost in _parts(program, program.instructions[name], one).items():
            instruction = program.instructions[part]
            if not instruction.op_name and one.frame_id is not None:
                instruction = replace(instruction, frame_id=one.frame_id, op_name=op_names.get(one.frame_id, ""))
            scope, phase = _place(program, instruction, trains, classes)
            if one.how == "passed":
                scope = PASSED
            weights[scope, phase] += cost
        total = sum(weights.values())
        rows += [
            {
                "program_id": program.program_id,
                "instruction": name,
                "scope": scope,
                "phase": phase,
                "weight": cost / total,
            }
            for (scope, phase), cost in weights.items()
        ]
    return rows


def _parts(program: Program, instruction: Instruction, found: Attribution) -> dict[str, float]:
    """The cost of the contents of an instruction; of itself, if nothing in it has a name."""
    costs: Mapping[str, float] = {}
    if found.how == "operand" and found.weight < 1:  # a collective that XLA combined
        costs = {operand: program.instructions[operand].bytes for operand in instruction.operands}
    elif instruction.opcode in ("fusion", "call", "async-start"):
        costs = split_cost(program, instruction.name)
    named = {part: cost for part, cost in costs.items() if program.instructions[part].op_name}
    return named if sum(named.values()) > 0 else {instruction.name: 1.0}


def _place(
    program: Program,
    instruction: Instruction,
    trains: bool,
    classes: dict[int | None, tuple[tuple[str, ...], bool]],
) -> tuple[str, Phase]:
    path, phase = split_scope(instruction.op_name)
    if instruction.frame_id not in classes:
        classes[instruction.frame_id] = _read_stack(program, instruction.frame_id)
    called, optimizes = classes[instruction.frame_id]
    if phase == "other" and trains and optimizes:
        phase = "optimizer"
    return "/".join(join_path(path, called)), phase


def _read_stack(program: Program, frame_id: int | None) -> tuple[tuple[str, ...], bool]:
    """The classes whose `__call__` is on a stack, outermost first, and whether an optimizer is."""
    called: list[str] = []
    optimizes = False
    for frame in program.stack(frame_id):
        match = CALL.fullmatch(frame.site.function)
        if match is not None and not match[1].endswith(TRANSFORMERS) and called[-1:] != [match[1]]:
            called.append(match[1])
        optimizes = optimizes or OPTIMIZER.search(f"{frame.site.file} {frame.site.function}") is not None
    return tuple(reversed(called)), optimizes
