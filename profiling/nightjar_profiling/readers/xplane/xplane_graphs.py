"""Instructions of CUDA graph nodes.

In: the ops of a device, and the programs. XLA records the thunks of a program into command buffers and launches them as
CUDA graphs. The trace names the command buffer for all nodes, which is not in the HLO, and the graph, node id and
kernel of each node. Out: the same ops with the instructions of their nodes, and which instructions were found by
schedule only.

A graph is aligned once, and the result holds for all its launches. The graphs and single kernels that one run of a
program launched are sorted by computation (a graph belongs to the computation that launches most of its kernel names),
and `node_alignment` matches them with the schedule. A node is known by name if its kernel has the name of its
instruction and no other kernel has that name. A node is `numbered` if the node ids of its graph agree with the
alignment, so that order, names and ids agree. All others are `placed`.

Source: openxla/xla:xla/backends/gpu/runtime/command_buffer_thunk.cc, xla/backends/profiler/gpu/cupti_collector.cc
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.hlo.hlo_launches import CHOOSING, CONTROL, Kernel, LaunchPlan, name_kernel
from nightjar_profiling.readers.node_alignment import align
from nightjar_profiling.readers.raw import Placing, merge_placings
from nightjar_profiling.readers.xplane.xplane_ops import GRAPH, KINDS, Ops, number_values
from nightjar_profiling.readers.xplane.xplane_values import Texts

Found = tuple[str, Placing | None]
"""The instruction of a node and how it was found; None: by name."""
ORDINAL = 0xFFFFFFFF  # part of a node id that counts nodes in the graph
MOST_VARIANTS = 8  # variants of a graph that are read if its launches differ in their nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ops with the instructions of their nodes.

    Attributes:
        open: whether each op is a node without a known instruction.
        placed: by program, the instructions not known by name, and how they were found.
    """

    ops: Ops
    open: NDArray[np.bool_]
    placed: Mapping[int, Mapping[str, Placing]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """One launch of a computation: a graph, or a single kernel of a known instruction.

    Attributes:
        keys: keys of the nodes (node and kernel as one number), in recorded order.
        numbers: number of each node in the graph.
    """

    kernels: list[Kernel | str]
    keys: list[int]
    numbers: list[int]
    computation: str


def find_control(programs: Iterable[Program]) -> set[str]:
    """The names of the instructions that run other computations: loops, conditionals and calls."""
    return {
        instruction.name
        for program in programs
        for instruction in program.instructions.values()
        if instruction.opcode in CONTROL
    }


def place_nodes(ops: Ops, programs: Mapping[int, Program], callers: Texts | None = None) -> Placed:
    """Finds the instructions of CUDA graph nodes.

    Args:
        programs: programs by id; ops of other programs stay unchanged.
        callers: of each op the loop, conditional or call that launched it, if the trace records it.
    """
    nodes = np.flatnonzero(ops.graph_node.known & ops.program.known)
    whole = (ops.kind.codes == GRAPH) & ops.program.known
    if not len(nodes) and not whole.any():
        return Placed(ops=ops, open=np.zeros(len(ops.start_ns), np.bool_))
    codes, names = ops.instruction.codes.copy(), list(ops.instruction.names)
    placings: list[tuple[int, dict[str, Placing]]] = []
    still_open, warnings = np.zeros(len(ops.start_ns), np.bool_), list[str]()
    if whole.any():
        still_open |= whole
        ms = int(ops.duration_ns[whole].sum()) / 1e6
        warnings.append(
            f"{int(whole.sum())} launches of CUDA graphs ({ms:.3f} ms) were traced whole: their kernels are not shown "
            "and not attributed; trace without gpu_enable_cupti_activity_graph_trace"
        )
    for number in np.unique(ops.program.values[nodes]).tolist():
        if number not in programs:
            continue
        still_open[nodes[ops.program.values[nodes] == number]] = True
        work = _Work(ops, programs[number], callers)
        matches = work.solve()
        still_open[work.rows[work.known[work.rows]]] = False
        warnings += work.warnings
        code_of = {name: code for code, name in enumerate(sorted({name for name, _ in matches.values()}), len(names))}
        names += code_of
        for graph, rows in work.graphs.items():
            keys, key_rows = np.unique(work.key[rows], return_inverse=True)
            of_key = [code_of[matches[graph, key][0]] if (graph, key) in matches else -1 for key in keys.tolist()]
            new = np.array(of_key, np.int64)[key_rows]
            codes[rows] = np.where(new >= 0, new, codes[rows])
            still_open[rows[new >= 0]] = False
        placings += [(number, {name: how}) for name, how in matches.values() if how is not None]
    return Placed(
        ops=replace(ops, instruction=Texts(codes=codes, names=names)),
        placed=merge_placings(placings),
        open=still_open,
        warnings=tuple(warnings),
    )


class _Work:
    """The graphs of one program on one device."""

    def __init__(self, ops: Ops, program: Program, callers: Texts | None) -> None:
        self.ops, self.program, self.plan, self.callers = ops, program, LaunchPlan(program), callers
        self.warnings: list[str] = []
        self.rows = np.flatnonzero(ops.program.known & (ops.program.values == program.program_id))
        codes = ops.instruction.codes
        self.known = np.array([name in self.plan.computation_of for name in ops.instruction.names] + [False])[codes]
        inside = self.rows[ops.graph_node.known[self.rows] & ~self.known[self.rows]]
        _, node = np.unique(ops.graph_node.values, return_inverse=True)
        self.key = node * (len(ops.kernel.names) + 1) + ops.kernel.codes
        graph = ops.graph.values * (len(ops.instruction.names) + 1) + codes
        numbers, graph_index = np.unique(graph[inside], return_inverse=True)
        self.graphs = {number: inside[graph_index == number] for number in range(len(numbers))}

    def solve(self) -> dict[tuple[int, int], Found]:
        """The instruction of each node, by graph and node key."""
        units = {graph: list(self._read_graph(rows)) for graph, rows in self.graphs.items()}
        ran = (kernel for parts in units.values() for unit in parts for kernel in unit.kernels)
        launched = Counter(kernel.name for kernel in ran if isinstance(kernel, Kernel))
        sequences: dict[str, list[tuple[int, _Unit]]] = defaultdict(list)
        for graph, name in self._order():
            if name is None:
                for unit in units[graph][:1]:
                    sequences[unit.computation].append((graph, unit))
            else:
                computation = self.plan.computation_of[name]
                sequences[computation].append(
                    (graph, _Unit(kernels=[name], keys=[graph], numbers=[0], computation=computation))
                )
        matches: dict[tuple[int, int], Found] = {}
        for parts in sequences.values():
            others = [(graph, unit) for graph, _ in parts for unit in units.get(graph, ())[1:]]
            for changed, other in [(-1, None), *others]:
                sequence = [(graph, other if other and graph == changed else unit) for graph, unit in parts]
                matches = self._align(sequence, launched) | matches
        return matches

    def _align(self, sequence: list[tuple[int, _Unit]], launched: Mapping[str, int]) -> dict[tuple[int, int], Found]:
        launchers = self.plan.launchers[sequence[0][1].computation]
        names = iter(align([kernel for _, unit in sequence for kernel in unit.kernels], launchers))
        position = {launcher.name: number for number, launcher in enumerate(launchers)}
        matches: dict[tuple[int, int], Found] = {}
        for graph, unit in sequence:
            unit_names = [next(names) for _ in unit.kernels]
            agreeing = _check_numbers(unit.numbers, [None if name is None else position[name] for name in unit_names])
            for key, kernel, name, number in zip(unit.keys, unit.kernels, unit_names, agreeing, strict=True):
                if name is not None and isinstance(kernel, Kernel):
                    named = kernel.name == name_kernel(name) and launched[kernel.name] == 1
                    matches[graph, key] = (name, None if named else "numbered" if number else "placed")
        return matches

    def _read_graph(self, rows: Positions) -> Iterator[_Unit]:
        """Yields the nodes of a graph in recorded order; more than one unit if its launches differ."""
        ops, seen = self.ops, set[int]()
        _, launch = number_values(ops.correlation.values[rows])
        largest = int(np.bincount(launch).argmax())
        unread = np.ones(len(rows), np.bool_)
        for _ in range(MOST_VARIANTS):
            if not unread.any():
                return
            chosen = launch == (largest if unread.all() else launch[np.flatnonzero(unread)[0]])
            nodes = rows[chosen]
            ids = ops.graph_node.values[nodes]
            gapless = len(np.unique(ids)) == len(ids) == (ids & ORDINAL).max() + 1
            nodes = nodes[np.argsort(ids) if gapless else np.lexsort((ids, ops.start_ns[nodes]))]
            keys = list(dict.fromkeys(self.key[nodes].tolist()))
            first = dict(zip(self.key[nodes][::-1].tolist(), nodes[::-1].tolist(), strict=True))
            kernels: list[Kernel | str] = [
                self.plan.find_kernel(ops.kernel.names[ops.kernel.codes[row]], KINDS[ops.kind.codes[row]])
                for row in map(first.__getitem__, keys)
            ]
            computation = self._find_computation(int(nodes[0]), kernels)
            if seen:
                name = ops.instruction.names[ops.instruction.codes[nodes[0]]]
                self.warnings.append(f"CUDA graph {name!r} of {self.program.name!r} ran with different nodes.")
            seen.update(keys)
            unread &= ~np.isin(self.key[rows], keys)
            if computation is not None:
                numbers = [int(ops.graph_node.values[first[key]]) & ORDINAL for key in keys]
                yield _Unit(kernels=kernels, keys=keys, numbers=numbers, computation=computation)

    def _find_computation(self, row: int, kernels: list[Kernel | str]) -> str | None:
        """The computation whose instructions launch most of the kernels; None if several do."""
        name = self.ops.instruction.names[self.ops.instruction.codes[row]]
        if name in self.program.instructions:  # an older XLA: the graph is a computation of its own
            called = [name for name in self.program.instructions[name].called if name in self.plan.launchers]
            if len(called) == 1:
                return called[0]
            return None
        candidates = self._find_called(row) or list(self.plan.launchers)
        if len(candidates) == 1:
            return candidates[0]
        families = [kernel.family for kernel in kernels if isinstance(kernel, Kernel)]
        ran = Counter(family for family in families if family is not None)
        votes: Counter[str] = Counter()
        for computation in candidates:
            launching = Counter(family for launcher in self.plan.launchers[computation] for family in launcher.families)
            votes[computation] = sum(min(count, launching[family]) for family, count in ran.items())
        best = max(votes.values(), default=0)
        candidates = [computation for computation, count in votes.items() if count == best]
        if len(candidates) > 1:  # library kernels only, or kernels of several computations
            scores = {c: sum(name is not None for name in align(kernels, self.plan.launchers[c])) for c in candidates}
            best = max(scores.values())
            candidates = [computation for computation in candidates if scores[computation] == best and best]
        if len(candidates) == 1:
            return candidates[0]
        return None

    def _find_called(self, row: int) -> list[str]:
        """The computations of the loop, conditional or call that launched an op; empty if unknown.

        Work launched by the device itself is a branch or a body within a graph: its nodes have no graph.
        """
        if self.callers is not None and not self.ops.graph.known[row]:
            instructions = self.program.instructions.values()
            inner = (name for one in instructions if one.opcode in CHOOSING for name in one.called)
            return [name for name in dict.fromkeys(inner) if name in self.plan.launchers]
        code = -1 if self.callers is None else int(self.callers.codes[row])
        if self.callers is None or code < 0:
            return []
        caller = self.program.instructions.get(self.callers.names[code])
        return [name for name in caller.called if name in self.plan.launchers] if caller is not None else []

    def _order(self) -> Iterator[tuple[int, str | None]]:
        """Orders graphs and single kernels as in one run of the program, the run that has most of them.

        Yields:
            The number of a graph and None; for a single kernel, a larger number and the name of its instruction.
        """
        ops, unit_of = self.ops, np.full(len(self.ops.start_ns), -1)
        for graph, rows in self.graphs.items():
            unit_of[rows] = graph
        single = self.rows[self.known[self.rows] & ~ops.graph_node.known[self.rows]]
        unit_of[single] = len(self.graphs) + ops.instruction.codes[single]
        rows = self.rows[np.argsort(ops.start_ns[self.rows], kind="stable")]
        rows = rows[unit_of[rows] >= 0]
        chosen = rows
        if len(rows) and ops.run.known[rows].all():
            _, run = number_values(ops.run.values[rows])
            units = len(self.graphs) + len(ops.instruction.names)
            kinds = np.bincount(np.unique(run * units + unit_of[rows]) // units)
            chosen = rows[run == kinds.argmax()]
        for number in dict.fromkeys([*_firsts(unit_of[chosen]), *_firsts(unit_of[rows])]):
            yield number, None if number < len(self.graphs) else ops.instruction.names[number - len(self.graphs)]


def _firsts(values: Positions) -> list[int]:
    """The distinct values, in order of first occurrence."""
    distinct, first = np.unique(values, return_index=True)
    ordered: list[int] = distinct[np.argsort(first)].tolist()
    return ordered


def _check_numbers(numbers: list[int], places: list[int | None]) -> list[bool]:
    """Whether the number of each node in its graph agrees with the alignment.

    XLA creates the nodes thunk by thunk in the order of the schedule, and CUDA numbers them. A library call is one
    node, a child graph, whose inner nodes are numbered after all others. So the numbers of a thunk must continue the
    previous thunk's, or skip one for a child graph; otherwise no number of the graph counts. Nor do the numbers of a
    thunk with several nodes, or of a child graph, count next to another such thunk: the two might share them.
    """
    nodes: dict[int, list[int]] = {}
    for number, position in zip(numbers, places, strict=True):
        if position is None:
            return [False] * len(numbers)
        nodes.setdefault(position, []).append(number)
    following, inside = 0, [1 << 32]
    single = {min(nodes, default=0) - 1, max(nodes, default=0) + 1}  # thunks of one node, and both ends of the graph
    for position in range(min(nodes, default=0), max(nodes, default=-1) + 1):
        own_numbers = sorted(nodes.get(position, ()))
        if not own_numbers:
            return [False] * len(numbers)
        if own_numbers == list(range(following, following + len(own_numbers))):
            following += len(own_numbers)
            single |= {position} if len(own_numbers) == 1 else set()
        else:
            following += 1
            inside += own_numbers
    sure = {position for position in nodes if position in single or {position - 1, position + 1} <= single}
    return [position in sure and min(inside) >= following for position in places]
