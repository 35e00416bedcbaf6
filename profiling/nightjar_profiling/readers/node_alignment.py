"""Which instruction launched each of the kernels that ran in a known order, where only their names and places tell?

In: kernels in the order in which XLA recorded them, and the instructions of a computation that launch something in the
order of the schedule. Out: of each kernel its instruction, or None. XLA records a command buffer thunk by thunk in the
order of the schedule, so both sequences tell of the same launches, and neither goes back. What is looked for is the
monotone alignment with the highest score. First the kernels are fixed whose family runs as often as instructions launch
it, the first by the first and so on; what lies between two of them is aligned by dynamic programming. A kernel whose
instruction is not the same in all alignments of the highest score gets none: nothing is guessed.

An instruction may launch several kernels: clears and copies come before the kernel that needs them, what sums a
library's results after it, what converts them on either side.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from nightjar_profiling.hlo.hlo_launches import Kernel, KernelKind, Launcher

# What a kernel scores as the one that an instruction is for, beside one that prepares it, ends it, or is one more.
NAMED, OWN, FAMILY, COLLECTIVE, LIBRARY, COPY, CLEAR = 40, 20, 19, 16, 12, 12, 10
BEFORE, AFTER, BESIDE, MORE = 2, 8, 4, 2
LOST_KERNEL, IDLE_INSTRUCTION, ONLY_PREPARED = 6, 2, 4  # what it costs to leave out
HELD = 1000
NEVER = -(10**9)
# Kernels times instructions: between two fixed ones, about three seconds; and of a computation. The rest stays open.
LARGEST_GAP, LARGEST_SUM = 400_000, 2_000_000
SUMS = re.compile(r"reduce", re.IGNORECASE)  # comes after the kernels whose results it sums
CONVERTS = re.compile(r"nchwto|nhwcto|convert|transform_", re.IGNORECASE)  # comes before or after


def align(kernels: Sequence[Kernel | str], launchers: Sequence[Launcher]) -> list[str | None]:
    """Aligns what ran with the instructions that launch something.

    Args:
        kernels: in the order in which they were recorded; of one whose instruction the trace names, that name.
        launchers: in the order of the schedule.

    Returns:
        Of each kernel the name of its instruction; None where it is not certain.
    """
    found: list[str | None] = [None] * len(kernels)
    left = LARGEST_SUM
    fixed = [(-1, -1), *_fix(kernels, launchers), (len(kernels), len(launchers))]
    for (kernel, launcher), (next_kernel, next_launcher) in pairwise(fixed):
        if kernel >= 0:
            found[kernel] = launchers[launcher].name
        if next_kernel - kernel <= 1:
            continue
        first, last = max(kernel, 0), min(next_kernel + 1, len(kernels))
        low, high = max(launcher, 0), min(next_launcher + 1, len(launchers))
        held = {(kernel - first, launcher - low), (next_kernel - first, next_launcher - low)}
        size = (last - first) * (high - low)
        if size <= min(LARGEST_GAP, left):
            left -= size
            part = _Gap(kernels[first:last], launchers[low:high], held)
            for number, at in enumerate(part.solve(), start=first):
                found[number] = None if at is None else launchers[low + at].name
    return found


def _fix(kernels: Sequence[Kernel | str], launchers: Sequence[Launcher]) -> list[tuple[int, int]]:
    """Kernels and instructions that belong together by name and number, none of them crossing another."""
    ran: dict[int | str, list[int]] = defaultdict(list)
    launching: dict[int | str, list[int]] = defaultdict(list)
    for number, kernel in enumerate(kernels):
        key = kernel if isinstance(kernel, str) else kernel.family
        if key is not None and (not ran[key] or not isinstance(key, str) or ran[key][-1] != number - 1):
            ran[key].append(number)
    for number, launcher in enumerate(launchers):
        launching[launcher.name].append(number)
        for family in launcher.families:
            launching[family].append(number)
    pairs = sorted(
        (kernel, launcher)
        for key, rows in ran.items()
        if len(rows) == len(launching.get(key, ()))
        for kernel, launcher in zip(rows, launching[key], strict=True)
    )
    return [pairs[number] for number in _rise([launcher for _, launcher in pairs])]


def _rise(values: Sequence[int]) -> Iterator[int]:
    """Positions of a longest strictly rising subsequence."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, value in enumerate(values):
        place = bisect_left(tails, value)
        before.append(ends[place - 1] if place else -1)
        tails[place : place + 1] = [value]
        ends[place : place + 1] = [number]
    path = []
    here = ends[-1] if ends else -1
    while here >= 0:
        path.append(here)
        here = before[here]
    return reversed(path)


class _Gap:
    """The alignment of a few kernels with a few instructions.

    A cell is how many kernels and how many instructions are done, in one of three states: FREE, the last instruction is
    done with; OPEN, the last kernel prepared it; RUN, its own kernel has run, and it may launch more.
    """

    def __init__(
        self, kernels: Sequence[Kernel | str], launchers: Sequence[Launcher], held: set[tuple[int, int]]
    ) -> None:
        self.kernels, self.launchers, self.held = kernels, launchers, held
        self.width = len(launchers) + 1
        cells = (len(kernels) + 1) * self.width
        self.free, self.open, self.run = ([NEVER] * cells for _ in range(3))
        self.free[0] = 0
        for cell in range(1, cells):
            done, at = divmod(cell, self.width)
            if done and at:
                self.open[cell] = max(score for *_, score in self._ways("open", cell))
                self.run[cell] = max(score for *_, score in self._ways("run", cell))
            self.free[cell] = max(score for *_, score in self._ways("free", cell))

    def solve(self) -> list[int | None]:
        """Of each kernel the position of its instruction; None where it has none, or not in all best alignments."""
        late, early = self._trace(1), self._trace(-1)
        return [one if one == other else None for one, other in zip(late, early, strict=True)]

    def _ways(self, state: str, cell: int) -> list[tuple[str, int, int]]:
        """The ways to a cell: state and cell before, and the score; first those that lean to late instructions."""
        done, at = divmod(cell, self.width)
        if state == "free":
            ways = []
            if done and at:
                ways = [("run", cell, self.run[cell]), ("open", cell, self.open[cell] - ONLY_PREPARED)]
            if at:
                ways.append(("free", cell - 1, self.free[cell - 1] - IDLE_INSTRUCTION))
            if done:
                ways.append(("free", cell - self.width, self.free[cell - self.width] - LOST_KERNEL))
            return ways
        kernel, launcher = self.kernels[done - 1], self.launchers[at - 1]
        above, diagonal = cell - self.width, cell - self.width - 1
        if state == "open":
            gain = _prepares(kernel, launcher)
            return [("open", above, self.open[above] + gain), ("free", diagonal, self.free[diagonal] + gain)]
        gain = HELD if (done - 1, at - 1) in self.held else _is_for(kernel, launcher)
        return [
            ("run", above, self.run[above] + _follows(kernel, launcher)),
            ("open", above, self.open[above] + gain),
            ("free", diagonal, self.free[diagonal] + gain),
        ]

    def _trace(self, step: int) -> list[int | None]:
        """The best alignment; of several the one with the latest instructions, or with step -1 the earliest."""
        found: list[int | None] = [None] * len(self.kernels)
        scores = {"free": self.free, "open": self.open, "run": self.run}
        state, cell = "free", len(self.free) - 1
        while cell:
            best = scores[state][cell]
            if state != "free":
                done, at = divmod(cell, self.width)
                found[done - 1] = at - 1
            state, cell = next((to, place) for to, place, score in self._ways(state, cell)[::step] if score == best)
        return found


def _is_for(kernel: Kernel | str, launcher: Launcher) -> int:
    """The score of a kernel as that which an instruction is for."""
    if isinstance(kernel, str):
        return NAMED if kernel == launcher.name else NEVER
    fits = {
        KernelKind.EMITTED: (
            kernel.family in launcher.families,
            OWN if kernel.instruction == launcher.name else FAMILY,
        ),
        KernelKind.COPY: (launcher.copies, COPY),
        KernelKind.MEMSET: (launcher.clears, CLEAR),
        KernelKind.COLLECTIVE: (launcher.collective, COLLECTIVE),
        KernelKind.LIBRARY: (
            launcher.library and (not kernel.vendor or not launcher.vendor or kernel.vendor == launcher.vendor),
            BESIDE if SUMS.search(kernel.name) or CONVERTS.search(kernel.name) else LIBRARY,
        ),
    }
    fit, score = fits[kernel.kind]
    return score if fit else NEVER


def _prepares(kernel: Kernel | str, launcher: Launcher) -> int:
    """As one that comes before it: a clear of what is summed into, a copy of what is sorted in its place."""
    if isinstance(kernel, str) or kernel.kind in (KernelKind.EMITTED, KernelKind.COLLECTIVE):
        return NEVER
    if kernel.kind is KernelKind.LIBRARY:
        return BESIDE if launcher.library and CONVERTS.search(kernel.name) else NEVER
    if launcher.library:
        return BEFORE
    return 0 if kernel.kind is KernelKind.MEMSET and not launcher.clears and not launcher.copies else NEVER


def _follows(kernel: Kernel | str, launcher: Launcher) -> int:
    """As one more, after it."""
    if isinstance(kernel, str):
        return NAMED if kernel == launcher.name else NEVER
    if not launcher.library:
        return NEVER
    if kernel.kind is KernelKind.EMITTED:  # a sort runs in several passes
        return MORE if kernel.family in launcher.families else NEVER
    if kernel.kind is KernelKind.LIBRARY:
        return AFTER if SUMS.search(kernel.name) else BESIDE if CONVERTS.search(kernel.name) else MORE
    return 0 if kernel.kind is not KernelKind.COLLECTIVE else NEVER
