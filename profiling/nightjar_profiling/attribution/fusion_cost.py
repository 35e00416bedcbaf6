"""The cost of the instructions in a fusion, by which its time is split.

In: a program, and instructions that call computations. Out: the cost of the instructions inside by Python frame, to be
used as a weight. A fusion is one kernel, and no clock runs inside it. The estimate is a roofline's: an instruction
costs

    bytes it moves between memory and the kernel + (flops + 8 * transcendentals) / 10,

where the bytes of a parameter belong to the instructions that use it, in equal parts, and the result's bytes to the
root (if the root is a tuple, to each of its operands). Values that stay inside the kernel move no bytes. An integer or
copying operation counts one flop per element, so that no work is free; parameters, constants, tuples and bitcasts are
free.

`FLOPS_PER_BYTE` is the balance of a data centre GPU outside its matrix units: 19.5 TFLOP/s of float32 by 1.56 TB/s on
an A100-40GB is 12.5, 67 by 3.35 on an H100 is 20, and a CPU core has less than 10. The weights of instructions in one
kernel hardly depend on it, because most kernels are bound by their memory traffic. A matrix product in a fusion
outweighs the rest by its flops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

from nightjar_profiling.hlo.hlo import Instruction, Program
from nightjar_profiling.hlo.hlo_cost import FREE, PARTIAL_READS

FLOPS_PER_BYTE = 10.0
FLOPS_PER_TRANSCENDENTAL = 8.0  # a polynomial or table step and its corrections; vendors' libraries need 5 to 20
WRAPPERS = frozenset(("fusion", "call", "async-start"))


def split_costs(program: Program, names: Iterable[str]) -> dict[str, dict[int, float]]:
    """Costs by frame of the instructions below others, at any depth; none if nothing there works or has a frame.

    Every computation is looked at once, however deep calls are nested. Only below what calls a computation that another
    one calls too, all is walked through for each instruction.
    """
    callers = {name for name in names if name in program.instructions and _calls(program.instructions[name])}
    sites = Counter(
        called for instruction in program.instructions.values() if _calls(instruction) for called in instruction.called
    )
    costs: dict[str, dict[int, float]] = {}
    totals: dict[str, dict[int, float] | None] = {}  # by computation; None: something below it is called twice

    def take(instruction: Instruction) -> dict[int, float] | None:
        """The costs below an instruction, taken out of `totals`, as nobody else asks for them."""
        once = all(sites[called] == 1 and totals.get(called) is not None for called in instruction.called)
        if once:
            total = _add_up(totals.pop(called) or {} for called in instruction.called)
        else:
            total = None
        if instruction.name in callers:
            costs[instruction.name] = (
                _by_frame(program, split_cost(program, instruction.name)) if total is None else dict(total)
            )
        return total

    for computation in _inner_first(program, callers):
        parts = [
            take(instruction)
            for instruction in map(program.instructions.get, program.computations[computation])
            if _calls(instruction)
        ]
        own = _by_frame(program, _computation_cost(program, computation))
        inner = [part for part in parts if part is not None]
        totals[computation] = _add_up([own, *inner]) if len(inner) == len(parts) else None
    for name in callers - costs.keys():
        take(program.instructions[name])
    return costs


def _calls(instruction: Instruction | None) -> TypeGuard[Instruction]:
    return instruction is not None and instruction.opcode in WRAPPERS and bool(instruction.called)


def _inner_first(program: Program, names: Iterable[str]) -> Iterator[str]:
    """The computations below instructions, each once, those that it calls before it; a circle is cut somewhere."""
    begun: set[str] = set()
    waiting = [(called, False) for name in names for called in program.instructions[name].called]
    while waiting:
        computation, done = waiting.pop()
        if done:
            yield computation
        elif computation not in begun:
            begun.add(computation)
            waiting.append((computation, True))
            members = map(program.instructions.get, program.computations[computation])
            waiting += [(called, False) for member in members if _calls(member) for called in member.called]


def _add_up(parts: Iterable[dict[int, float]]) -> dict[int, float]:
    """The sum of costs; the largest part becomes it."""
    ordered = sorted(parts, key=len)
    total = ordered.pop() if ordered else {}
    for part in ordered:
        for frame_id, cost in part.items():
            total[frame_id] = total.get(frame_id, 0.0) + cost
    return total


def _by_frame(program: Program, costs: Mapping[str, float]) -> dict[int, float]:
    by_frame: dict[int, float] = {}
    for name, cost in costs.items():
        instruction = program.instructions[name]
        if instruction.frame_id is not None and cost > 0 and not _calls(instruction):
            by_frame[instruction.frame_id] = by_frame.get(instruction.frame_id, 0.0) + cost
    return by_frame


def split_cost(program: Program, name: str) -> dict[str, float]:
    """Costs of the instructions below one that calls computations, at any depth; empty if nothing in it works."""
    costs: dict[str, float] = {}
    waiting, seen = [*program.instructions[name].called], set[str]()
    while waiting:
        computation = waiting.pop()
        if computation in seen:
            continue
        seen.add(computation)
        for inner, cost in _computation_cost(program, computation).items():
            instruction = program.instructions[inner]
            if instruction.opcode in WRAPPERS and instruction.called:
                waiting += instruction.called
            elif cost > 0:
                costs[inner] = cost
    return costs


def _computation_cost(program: Program, computation: str) -> dict[str, float]:
    members = [program.instructions[name] for name in program.computations[computation]]
    users: dict[str, list[Instruction]] = {}
    for member in members:
        for operand in dict.fromkeys(member.operands):
            users.setdefault(operand, []).append(member)
    costs = {member.name: _work(member) / FLOPS_PER_BYTE for member in members}
    for member in members:
        if member.opcode == "parameter":
            readers = [user for user in _readers(member, users) if user.opcode not in FREE]
            for user in readers:
                whole = user.opcode not in PARTIAL_READS and user.opcode != "dynamic-update-slice"
                costs[user.name] += (member.bytes if whole else min(member.bytes, user.bytes)) / len(readers)
    for root in _written(program, program.roots[computation]):
        costs[root.name] += root.bytes
    return costs


def _work(instruction: Instruction) -> float:
    if instruction.opcode in FREE:
        return 0.0
    return (
        max(instruction.flops or 0.0, float(instruction.elements))
        + FLOPS_PER_TRANSCENDENTAL * instruction.transcendentals
    )


def _readers(parameter: Instruction, users: dict[str, list[Instruction]]) -> list[Instruction]:
    """Who uses a parameter, seen through bitcasts and tuple elements."""
    readers, waiting, seen = [], [parameter.name], {parameter.name}
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.name in seen:
                continue
            seen.add(user.name)
            if user.opcode in ("bitcast", "get-tuple-element"):
                waiting.append(user.name)
            else:
                readers.append(user)
    return readers


def _written(program: Program, root: str) -> list[Instruction]:
    """The instructions that compute a computation's results, seen through tuples and bitcasts."""
    writers, waiting, seen = [], [root], {root}
    while waiting:
        instruction = program.instructions[waiting.pop()]
        if instruction.opcode in ("tuple", "bitcast", "get-tuple-element"):
            fresh = [operand for operand in dict.fromkeys(instruction.operands) if operand not in seen]
            seen.update(fresh)
            waiting += fresh
        elif instruction.opcode not in FREE:
            writers.append(instruction)
    return writers
