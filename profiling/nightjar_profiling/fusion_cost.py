"""How is the time of a fusion split over the instructions that were fused?

In: a program and the name of an instruction that calls computations. Out: a cost for each instruction in them, to be
used as a weight. A fusion is one kernel; no clock runs inside. The estimate is a roofline's: an instruction costs

    bytes it moves between memory and the kernel + (flops + 8 * transcendentals) / 10,

where the bytes of a parameter belong to those that use it, in equal parts, and those of the result to the root (of a
root that is a tuple, to each of its operands). What stays inside the kernel moves no bytes. An integer or copying
operation counts a flop for each element, so that nothing that works is free; parameters, constants, tuples and
bitcasts are.

`FLOPS_PER_BYTE` is the balance of a data centre GPU outside its matrix units: 19.5 TFLOP/s of float32 by 1.56 TB/s on
an A100-40GB is 12.5, 67 by 3.35 on an H100 is 20, and a CPU core has less than 10; the weights of instructions in one
kernel hardly depend on it, because most kernels are bound by their memory traffic. A matrix product in a fusion
outweighs the rest by its flops.
"""

from __future__ import annotations

from nightjar_profiling.readers.hlo import Instruction, Program
from nightjar_profiling.readers.hlo_cost import FREE, PARTIAL_READS

FLOPS_PER_BYTE = 10.0
FLOPS_PER_TRANSCENDENTAL = 8.0  # a polynomial or table step and its corrections; vendors' libraries need 5 to 20
WRAPPERS = frozenset(("fusion", "call", "async-start"))


def split_cost(program: Program, name: str) -> dict[str, float]:
    """Costs of the instructions below one that calls computations, at any depth; empty where nothing in it works."""
    costs: dict[str, float] = {}
    waiting, seen = [*program.instructions[name].called], set[str]()
    while waiting:
        computation = waiting.pop()
        if computation in seen:
            continue
        seen.add(computation)
        for inner, cost in _computation_cost(program, computation).items():
            one = program.instructions[inner]
            if one.opcode in WRAPPERS and one.called:
                waiting += one.called
            elif cost > 0:
                costs[inner] = cost
    return costs


def _computation_cost(program: Program, computation: str) -> dict[str, float]:
    members = [program.instructions[name] for name in program.computations[computation]]
    users: dict[str, list[Instruction]] = {}
    for one in members:
        for operand in dict.fromkeys(one.operands):
            users.setdefault(operand, []).append(one)
    costs = {one.name: _work(one) / FLOPS_PER_BYTE for one in members}
    for one in members:
        if one.opcode == "parameter":
            readers = [user for user in _readers(one, users) if user.opcode not in FREE]
            for user in readers:
                whole = user.opcode not in PARTIAL_READS and user.opcode != "dynamic-update-slice"
                costs[user.name] += (one.bytes if whole else min(one.bytes, user.bytes)) / len(readers)
    for root in _written(program, program.roots[computation]):
        costs[root.name] += root.bytes
    return costs


def _work(one: Instruction) -> float:
    if one.opcode in FREE:
        return 0.0
    return max(one.flops or 0.0, float(one.elements)) + FLOPS_PER_TRANSCENDENTAL * one.transcendentals


def _readers(parameter: Instruction, users: dict[str, list[Instruction]]) -> list[Instruction]:
    """Who uses a parameter, seen through bitcasts and tuple elements."""
    found, waiting, seen = [], [parameter.name], {parameter.name}
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.name in seen:
                continue
            seen.add(user.name)
            if user.opcode in ("bitcast", "get-tuple-element"):
                waiting.append(user.name)
            else:
                found.append(user)
    return found


def _written(program: Program, root: str) -> list[Instruction]:
    """What computes a computation's results, seen through tuples and bitcasts."""
    found, waiting, seen = [], [root], {root}
    while waiting:
        one = program.instructions[waiting.pop()]
        if one.opcode in ("tuple", "bitcast", "get-tuple-element"):
            fresh = [operand for operand in dict.fromkeys(one.operands) if operand not in seen]
            seen.update(fresh)
            waiting += fresh
        elif one.opcode not in FREE:
            found.append(one)
    return found
