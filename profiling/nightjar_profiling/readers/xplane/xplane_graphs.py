"""Which instruction does each node of a CUDA graph run?

In: the ops of a device, and the programs. XLA records the thunks of a program into command buffers and launches them as
CUDA graphs; the trace then names the command buffer for all its nodes, which is in no HLO, and of each node the graph,
the node's id and the kernel. Out: the same ops with the instructions that their nodes run, and which instructions were
found by place alone.

A graph is aligned once and the answer serves all its launches. What one run of a program launched, graphs and single
kernels, is put in order for each computation (that which launches most kernels of a graph's names is the graph's), and
`node_alignment` matches it with the schedule. A node whose kernel carries the name of its instruction, and is the only
one of that name, is known by name. A node is `numbered` where the numbers of all nodes of its graph say the same as the
alignment: then order, names and numbers agree. All others are `placed`.

Source: openxla/xla:xla/backends/gpu/runtime/command_buffer_thunk.cc, xla/backends/profiler/gpu/cupti_collector.cc
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.hlo.hlo_launches import Kernel, LaunchPlan, name_kernel
from nightjar_profiling.readers.node_alignment import align
from nightjar_profiling.readers.raw import Placing, merge_placings
from nightjar_profiling.readers.xplane.xplane_ops import GRAPH, KINDS, Ops, number_values
from nightjar_profiling.readers.xplane.xplane_values import Texts

Found = tuple[str, Placing | None]
"""The instruction of a node and how it was found; None: by name."""
ORDINAL = 0xFFFFFFFF  # of the id of a node, the part that counts in its graph
MOST_VARIANTS = 8  # launches of a graph that are looked at, where they differ in their nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Ops with the instructions of their nodes.

    Attributes:
        open: of each op, whether it is a node whose instruction was not found.
        placed: by program, the instructions that were not known by name, and how they were found.
    """

    ops: Ops
    open: NDArray[np.bool_]
    placed: Mapping[int, Mapping[str, Placing]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """What a computation launches at once: a graph, or a single kernel of a known instruction (then `name`).

    Attributes:
        keys: of a graph's nodes in the order in which they were recorded: node and kernel, as one number.
        numbers: of each of them in the graph.
    """

    kernels: list[Kernel | str]
    keys: list[int]
    numbers: list[int]
    computation: str


def place_nodes(ops: Ops, programs: Mapping[int, Program]) -> Placed:
    """Finds the instructions of the nodes of CUDA graphs.

    Args:
        ops: of one device.
        programs: by id; an op of another keeps what the trace says.
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
        work = _Work(ops, programs[number])
        found = work.solve()
        still_open[work.rows[work.known[work.rows]]] = False
        warnings += work.warnings
        fresh = {name: len(names) + at for at, name in enumerate(sorted({name for name, _ in found.values()}))}
        names += fresh
        for graph, rows in work.graphs.items():
            keys, at = np.unique(work.key[rows], return_inverse=True)
            of_key = [fresh[found[graph, key][0]] if (graph, key) in found else -1 for key in keys.tolist()]
            new = np.array(of_key, np.int64)[at]
            codes[rows] = np.where(new >= 0, new, codes[rows])
            still_open[rows[new >= 0]] = False
        placings += [(number, {name: how}) for name, how in found.values() if how is not None]
    return Placed(
        ops=replace(ops, instruction=Texts(codes=codes, names=names)),
        placed=merge_placings(placings),
        open=still_open,
        warnings=tuple(warnings),
    )


class _Work:
    """The graphs of one program on one device."""

    def __init__(self, ops: Ops, program: Program) -> None:
        self.ops, self.program, self.plan = ops, program, LaunchPlan(program)
        self.warnings: list[str] = []
        self.rows = np.flatnonzero(ops.program.known & (ops.program.values == program.program_id))
        codes = ops.instruction.codes
        self.known = np.array([name in self.plan.computation_of for name in ops.instruction.names] + [False])[codes]
        inside = self.rows[ops.graph_node.known[self.rows] & ~self.known[self.rows]]
        _, node = np.unique(ops.graph_node.values, return_inverse=True)
        self.key = node * (len(ops.kernel.names) + 1) + ops.kernel.codes
        graph = ops.graph.values * (len(ops.instruction.names) + 1) + codes
        numbers, place = np.unique(graph[inside], return_inverse=True)
        self.graphs = {number: inside[place == number] for number in range(len(numbers))}

    def solve(self) -> dict[tuple[int, int], Found]:
        """By graph and key of a node what was found."""
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
        found: dict[tuple[int, int], Found] = {}
        for parts in sequences.values():
            others = [(graph, unit) for graph, _ in parts for unit in units.get(graph, ())[1:]]
            for changed, other in [(-1, None), *others]:
                sequence = [(graph, other if other and graph == changed else unit) for graph, unit in parts]
                found = self._align(sequence, launched) | found
        return found

    def _align(self, sequence: list[tuple[int, _Unit]], launched: Mapping[str, int]) -> dict[tuple[int, int], Found]:
        launchers = self.plan.launchers[sequence[0][1].computation]
        names = iter(align([kernel for _, unit in sequence for kernel in unit.kernels], launchers))
        place = {launcher.name: number for number, launcher in enumerate(launchers)}
        found: dict[tuple[int, int], Found] = {}
        for graph, unit in sequence:
            mine = [next(names) for _ in unit.kernels]
            counted = _check_numbers(unit.numbers, [None if name is None else place[name] for name in mine])
            for key, kernel, name, number in zip(unit.keys, unit.kernels, mine, counted, strict=True):
                if name is not None and isinstance(kernel, Kernel):
                    named = kernel.name == name_kernel(name) and launched[kernel.name] == 1
                    found[graph, key] = (name, None if named else "numbered" if number else "placed")
        return found

    def _read_graph(self, rows: Positions) -> Iterator[_Unit]:
        """The nodes of a graph in the order in which they were recorded; more than one unit where launches differ."""
        ops, seen = self.ops, set[int]()
        _, place = number_values(ops.correlation.values[rows])
        largest = int(np.bincount(place).argmax())
        left = np.ones(len(rows), np.bool_)
        for _ in range(MOST_VARIANTS):
            if not left.any():
                return
            chosen = place == (largest if left.all() else place[np.flatnonzero(left)[0]])
            mine = rows[chosen]
            node = ops.graph_node.values[mine]
            gapless = len(np.unique(node)) == len(node) == np.ptp(node) + 1
            mine = mine[np.argsort(node) if gapless else np.lexsort((node, ops.start_ns[mine]))]
            keys = list(dict.fromkeys(self.key[mine].tolist()))
            first = dict(zip(self.key[mine][::-1].tolist(), mine[::-1].tolist(), strict=True))
            kernels: list[Kernel | str] = [
                self.plan.find_kernel(ops.kernel.names[ops.kernel.codes[row]], KINDS[ops.kind.codes[row]])
                for row in map(first.__getitem__, keys)
            ]
            computation = self._find_computation(int(mine[0]), kernels)
            if seen:
                name = ops.instruction.names[ops.instruction.codes[mine[0]]]
                self.warnings.append(f"CUDA graph {name!r} of {self.program.name!r} ran with different nodes.")
            seen.update(keys)
            left &= ~np.isin(self.key[rows], keys)
            if computation is not None:
                numbers = [int(ops.graph_node.values[first[key]]) & ORDINAL for key in keys]
                yield _Unit(kernels=kernels, keys=keys, numbers=numbers, computation=computation)

    def _find_computation(self, row: int, kernels: list[Kernel | str]) -> str | None:
        """The computation whose instructions launch most of the kernels; None where several do."""
        name = self.ops.instruction.names[self.ops.instruction.codes[row]]
        if name in self.program.instructions:  # an older XLA: the graph is a computation of its own
            called = [one for one in self.program.instructions[name].called if one in self.plan.launchers]
            return called[0] if len(called) == 1 else None
        families = [kernel.family for kernel in kernels if isinstance(kernel, Kernel)]
        ran = Counter(family for family in families if family is not None)
        votes: Counter[str] = Counter()
        for computation, launchers in self.plan.launchers.items():
            launching = Counter(family for one in launchers for family in one.families)
            votes[computation] = sum(min(count, launching[family]) for family, count in ran.items())
        best = max(votes.values(), default=0)
        found = [computation for computation, count in votes.items() if count == best]
        if len(found) > 1:  # of library kernels alone, or of such as several computations launch
            scores = {one: sum(name is not None for name in align(kernels, self.plan.launchers[one])) for one in found}
            best = max(scores.values())
            found = [one for one in found if scores[one] == best and best]
        return found[0] if len(found) == 1 else None

    def _order(self) -> Iterator[tuple[int, str | None]]:
        """Graphs and single kernels in the order of one run of the program, that which holds most of them.

        Yields:
            The number of a graph and None; of a single kernel, a number beyond, and the name of its instruction.
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
    """The different values, in the order in which they first come."""
    found, first = np.unique(values, return_index=True)
    ordered: list[int] = found[np.argsort(first)].tolist()
    return ordered


def _check_numbers(numbers: list[int], places: list[int | None]) -> list[bool]:
    """Whether the number of each node in its graph says the same as the alignment.

    XLA makes the nodes thunk by thunk in the order of the schedule, and CUDA counts them: a library's call is one node,
    a child graph, and the nodes inside it are counted after all others. So thunk by thunk the numbers must go on where
    those of the last one ended, or leave out one for a child graph. Where they do not, no number of the graph counts.
    Nor do those of several nodes of one thunk, or of a child graph, beside another such: the two might share them.
    """
    nodes: dict[int, list[int]] = {}
    for number, place in zip(numbers, places, strict=True):
        if place is None:
            return [False] * len(numbers)
        nodes.setdefault(place, []).append(number)
    following, inside = 0, [1 << 32]
    alone = {min(nodes, default=0) - 1, max(nodes, default=0) + 1}  # thunks of one node each, and the ends of the graph
    for place in range(min(nodes, default=0), max(nodes, default=-1) + 1):
        mine = sorted(nodes.get(place, ()))
        if not mine:
            return [False] * len(numbers)
        if mine == list(range(following, following + len(mine))):
            following += len(mine)
            alone |= {place} if len(mine) == 1 else set()
        else:
            following += 1
            inside += mine
    sure = {place for place in nodes if place in alone or {place - 1, place + 1} <= alone}
    return [place in sure and min(inside) >= following for place in places]
