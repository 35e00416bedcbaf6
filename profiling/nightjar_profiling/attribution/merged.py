"""Operations that XLA merged into one, and the shape of values before the program was partitioned.

In: an optimized program, and the program that JAX lowered. Out: for each instruction that ran, the stacks of the other
operations that it stands for, and their number. An instruction carries the stack of one operation only, so this
takes the program before optimizations: operations that compute the same value there, of which fewer are left.

An operation of before is recognized by its name and its whole stack. It counts as merged if

1. another operation of the same value is left in the optimized program, and
2. its own name and stack are left nowhere, or on fewer instructions than there were operations.

Nothing is reported if a name and a stack stood for several values of different company (the layers of a Python loop, of
which only some are alike), since no instruction identifies one of them. Operations that become equal only through other
optimizations are not found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nightjar_profiling.hlo.frames import FrameIndex
from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.hlo.joined import Stack
from nightjar_profiling.hlo.lowered import MOVES, Lowered
from nightjar_profiling.hlo.sharding import compare_shapes

Key = tuple[str, Stack]
"""Name and stack of an operation."""
Company = tuple[tuple[Key, int], ...]
"""The operations of one value: how many there are of each name and stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Operations with one stack whose value an instruction also computes.

    Attributes:
        instruction: that ran; a fusion if the operation is in one.
        frame_id: of the operations that were merged with it.
        operations: their number.
    """

    instruction: str
    kept_frame_id: int
    frame_id: int
    operations: int


def choose_lowered(program: Program, candidates: Iterable[Lowered]) -> Lowered | None:
    """A program before optimizations: same name and arguments, and most of its operations.

    Returns:
        None if none fits, or several fit equally well and differ.
    """
    index = FrameIndex(program.frames)
    keys = set(_place_instructions(program, index))
    scored = [
        (len(keys & {(operation.op_name, operation.stack) for operation in lowered.operations}), lowered)
        for lowered in candidates
        if lowered.name == program.name and _fits(program, lowered)
    ]
    best = max((score for score, _ in scored), default=0)
    fitting = [lowered for score, lowered in scored if score == best]
    if best == 0 or any(lowered.operations != fitting[0].operations for lowered in fitting[1:]):
        return None
    return fitting[0]


def _fits(program: Program, lowered: Lowered) -> bool:
    entry = _entry(program)
    arguments = {
        program.instructions[name].parameter_number: program.instructions[name].shape
        for name in program.computations[entry]
        if program.instructions[name].opcode == "parameter"
    }
    shapes = [arguments[number] for number in sorted(arguments)]
    if program.partitions == 1:
        return shapes == list(lowered.arguments)
    return len(shapes) == len(lowered.arguments) and all(
        compare_shapes(whole, local) for whole, local in zip(lowered.arguments, shapes, strict=True)
    )


def _entry(program: Program) -> str:
    """The computation that no other calls; the first of a damaged program in which each is called."""
    called = {name for instruction in program.instructions.values() for name in instruction.called}
    uncalled = (name for name in reversed(program.computations) if name not in called)
    return next(uncalled, next(iter(program.computations)))


def _place_instructions(program: Program, index: FrameIndex) -> dict[Key, list[str]]:
    """The instructions that compute something, by their name and stack before optimizations."""
    placed: dict[Key, list[str]] = defaultdict(list)
    for name, instruction in program.instructions.items():
        if instruction.opcode in MOVES or not instruction.op_name or instruction.frame_id is None:
            continue
        placed[instruction.op_name, index.stack_of(instruction.frame_id)].append(name)
    return placed


def find_merged(program: Program, lowered: Lowered, names: Sequence[str], index: FrameIndex) -> list[Merged]:
    """The operations merged into each instruction.

    Args:
        index: of the program's frames; frames that only `lowered` has are added.
    """
    left = _place_instructions(program, index)
    also: dict[str, Counter[Key]] = defaultdict(Counter)
    for company in _find_companies(lowered):
        kept = [key for key, _ in company if key in left]
        gone = Counter({key: count for key, count in company if key not in left})
        for key in kept:
            more = dict(company)[key] - len(left[key])
            for name in left[key]:
                also[name] += gone
                if more > 0:
                    also[name][key] += more
    owners = _find_owners(program, names)
    largest: Counter[tuple[str, int, Key]] = Counter()
    for name, keys in also.items():
        kept_frame_id = program.instructions[name].frame_id or 0
        for owner in owners.get(name, ()):
            for key, count in keys.items():  # a fusion may hold copies of the operation
                largest[owner, kept_frame_id, key] = max(largest[owner, kept_frame_id, key], count)
    sums: Counter[tuple[str, int, int]] = Counter()  # whatever the operations were called
    for (owner, kept_frame_id, (_, stack)), count in sorted(largest.items()):
        frame_id = index.frame_of(stack)
        if frame_id is not None:
            sums[owner, kept_frame_id, frame_id] += count
    return [
        Merged(instruction=owner, kept_frame_id=kept, frame_id=frame_id, operations=count)
        for (owner, kept, frame_id), count in sums.items()
    ]


def _find_companies(lowered: Lowered) -> list[Company]:
    """The operations of each value that several compute, as far as name and stack tell them from others."""
    values: dict[int, Counter[Key]] = defaultdict(Counter)
    for operation in lowered.operations:
        values[operation.value][operation.op_name, operation.stack] += 1
    of_key: dict[Key, set[Company]] = defaultdict(set)
    times: Counter[Company] = Counter()
    for counts in values.values():
        company = tuple(sorted(counts.items()))
        times[company] += 1
        for key in counts:
            of_key[key].add(company)
    companies = []
    for company, count in times.items():
        alone = all(len(of_key[key]) == 1 for key, _ in company)
        if alone and sum(n for _, n in company) > 1:
            companies.append(tuple((key, n * count) for key, n in company) if count > 1 else company)
    return companies


def _find_owners(program: Program, names: Iterable[str]) -> dict[str, list[str]]:
    """For each instruction, those that ran and are it or hold it; a loop runs its body's instructions by themselves."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name not in program.instructions:
            continue
        owners[name].append(name)
        for inner in program.below(name):
            owners[inner].append(name)
    return owners


def find_global_shapes(program: Program, lowered: Lowered, index: FrameIndex) -> Mapping[str, str]:
    """By instruction of a partitioned program, the shape of its whole array, if one operation tells it."""
    shapes: dict[tuple[Key, str], set[str]] = defaultdict(set)
    for operation in lowered.operations:
        shapes[(operation.op_name, operation.stack), operation.opcode].add(operation.shape)
    found = {}
    for name, instruction in program.instructions.items():
        if instruction.frame_id is None or program.partitions == 1:
            continue
        opcode = _working_opcode(program, name)
        whole = shapes.get(((instruction.op_name, index.stack_of(instruction.frame_id)), opcode), set())
        if len(whole) == 1:
            found[name] = next(iter(whole))
    return found


def _working_opcode(program: Program, name: str) -> str:
    instruction = program.instructions[name]
    if instruction.opcode == "fusion" and instruction.called:
        return program.instructions[program.roots[instruction.called[0]]].opcode
    return instruction.opcode


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A program, with facts from its form before optimizations.

    Attributes:
        program: with the frames of merged operations besides its own.
        merged: operations that its instructions stand for besides their own.
        whole_shapes: of a partitioned program, shape of the whole array by instruction.
    """

    program: Program
    merged: Sequence[Merged]
    whole_shapes: Mapping[str, str]


def find_origins(
    programs: Mapping[int, Program], ran: Mapping[int, Sequence[str]], lowered: Iterable[Lowered]
) -> dict[int, Origin]:
    """The origins of the programs that ran, by program id."""
    candidates = list(lowered)
    origins = {}
    for number, names in ran.items() if candidates else ():
        if number not in programs:
            continue
        program = programs[number]
        before = choose_lowered(program, candidates)
        if before is None:
            continue
        index = FrameIndex(program.frames)
        merged = find_merged(program, before, names, index)
        shapes = find_global_shapes(program, before, index)
        frames = {**program.frames, **{frame.frame_id: frame for frame in index.added}}
        origins[number] = Origin(program=replace(program, frames=frames), merged=merged, whole_shapes=shapes)
    return origins


def merged_rows(origins: Mapping[int, Origin]) -> list[dict[str, int | str]]:
    """The rows of the table `merged_operations`."""
    return [
        {
            "program_id": number,
            "instruction": merged.instruction,
            "kept_frame_id": merged.kept_frame_id,
            "frame_id": merged.frame_id,
            "operations": merged.operations,
        }
        for number, origin in origins.items()
        for merged in origin.merged
    ]
