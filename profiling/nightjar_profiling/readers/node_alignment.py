"""Alignment of recorded kernels with the instructions of a schedule.

In: kernels in the order in which XLA recorded them, and the launching instructions of a computation in the order of the
schedule. Out: the instruction of each kernel, or None. XLA records a command buffer thunk by thunk in the order of the
schedule, so both sequences describe the same launches in the same order. The result is the monotone alignment with the
highest score. Kernels of a family that ran as often as instructions launch it are matched first, in order; the gaps
between them are aligned by dynamic programming. A kernel whose instruction differs between alignments of the highest
score gets None: nothing is guessed.

An instruction may launch several kernels: clears and copies run before the kernel that needs them, kernels that sum a
library's results run after it, and kernels that convert data run before or after it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from nightjar_profiling.hlo.hlo_launches import Kernel, KernelKind, Launcher

# Scores of a kernel as the main kernel of an instruction; then of kernels that run before or after it, and of others.
NAMED, OWN, FAMILY, COLLECTIVE, LIBRARY, COPY, CLEAR = 40, 20, 19, 16, 12, 12, 10
BEFORE, AFTER, AUXILIARY, MORE = 2, 8, 4, 2
LOST_KERNEL, IDLE_INSTRUCTION, ONLY_PREPARED = 6, 2, 4  # costs of leaving them unmatched
HELD = 1000
NEVER = -(10**9)
# Kernels times instructions: per gap (about three seconds), and per computation. Anything larger stays unmatched.
LARGEST_GAP, LARGEST_SUM = 400_000, 2_000_000
SUMS = re.compile(r"reduce", re.IGNORECASE)  # runs after the kernels whose results it sums
CONVERTS = re.compile(r"nchwto|nhwcto|convert|transform_", re.IGNORECASE)  # runs before or after


def align(kernels: Sequence[Kernel | str], launchers: Sequence[Launcher]) -> list[str | None]:
    """Aligns kernels with the instructions that launch kernels.

    Returns:
        The instruction name of each kernel; None if it is ambiguous.
    """
    matches: list[str | None] = [None] * len(kernels)
    budget = LARGEST_SUM
    fixed = [(-1, -1), *_fix(kernels, launchers), (len(kernels), len(launchers))]
    for (kernel, launcher), (next_kernel, next_launcher) in pairwise(fixed):
        if kernel >= 0:
            matches[kernel] = launchers[launcher].name
        if next_kernel - kernel <= 1:
            continue
        first, last = max(kernel, 0), min(next_kernel + 1, len(kernels))
        low, high = max(launcher, 0), min(next_launcher + 1, len(launchers))
        held = {(kernel - first, launcher - low), (next_kernel - first, next_launcher - low)}
        size = (last - first) * (high - low)
        if size <= min(LARGEST_GAP, budget):
            budget -= size
            part = _Gap(kernels[first:last], launchers[low:high], held)
            for number, at in enumerate(part.solve(), start=first):
                if at is not None:
                    matches[number] = launchers[low + at].name
    return matches


def _fix(kernels: Sequence[Kernel | str], launchers: Sequence[Launcher]) -> list[tuple[int, int]]:
    """Matches kernels and instructions by name and count; matches do not cross."""
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
    """The positions of a longest strictly increasing subsequence."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, value in enumerate(values):
        length = bisect_left(tails, value)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1] = [value]
        ends[length : length + 1] = [number]
    path = []
    position = ends[-1] if ends else -1
    while position >= 0:
        path.append(position)
        position = before[position]
    return reversed(path)


class _Gap:
    """The alignment of a few kernels with a few instructions.

    A cell is a number of kernels and a number of instructions that are aligned, in one of three states: FREE, the last
    instruction is complete; OPEN, only kernels that prepare it have run; RUN, its main kernel has run, more may
    follow.
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
        """The position of each kernel's instruction; None if it has none, or if the best alignments differ."""
        late, early = self._trace(1), self._trace(-1)
        return [last if last == first else None for last, first in zip(late, early, strict=True)]

    def _ways(self, state: str, cell: int) -> list[tuple[str, int, int]]:
        """The steps into a cell: previous state, previous cell and score; those with late instructions come first."""
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
            gain = _score_before(kernel, launcher)
            return [("open", above, self.open[above] + gain), ("free", diagonal, self.free[diagonal] + gain)]
        gain = HELD
        if (done - 1, at - 1) not in self.held:
            gain = _score_main(kernel, launcher)
        return [
            ("run", above, self.run[above] + _score_after(kernel, launcher)),
            ("open", above, self.open[above] + gain),
            ("free", diagonal, self.free[diagonal] + gain),
        ]

    def _trace(self, step: int) -> list[int | None]:
        """The best alignment; of several, the one with the latest instructions, or with step -1 the earliest."""
        positions: list[int | None] = [None] * len(self.kernels)
        scores = {"free": self.free, "open": self.open, "run": self.run}
        state, cell = "free", len(self.free) - 1
        while cell:
            best = scores[state][cell]
            if state != "free":
                done, at = divmod(cell, self.width)
                positions[done - 1] = at - 1
            state, cell = next((to, at) for to, at, score in self._ways(state, cell)[::step] if score == best)
        return positions


def _score_main(kernel: Kernel | str, launcher: Launcher) -> int:
    if isinstance(kernel, str):
        if kernel == launcher.name:
            return NAMED
        return NEVER
    emitted = OWN if kernel.instruction == launcher.name else FAMILY
    if SUMS.search(kernel.name) or CONVERTS.search(kernel.name):
        library = AUXILIARY
    else:
        library = LIBRARY
    same_vendor = not kernel.vendor or not launcher.vendor or kernel.vendor == launcher.vendor
    fits = {
        KernelKind.EMITTED: (kernel.family in launcher.families, emitted),
        KernelKind.COPY: (launcher.copies, COPY),
        KernelKind.MEMSET: (launcher.clears, CLEAR),
        KernelKind.COLLECTIVE: (launcher.collective, COLLECTIVE),
        KernelKind.CONDITION: (launcher.chooses, OWN),
        KernelKind.LIBRARY: (launcher.library and same_vendor, library),
    }
    fit, score = fits[kernel.kind]
    if fit:
        return score
    return NEVER


def _score_before(kernel: Kernel | str, launcher: Launcher) -> int:
    """The score of a kernel that runs before the main kernel: a clear before a sum, a copy before an in-place sort."""
    if isinstance(kernel, str) or kernel.kind in (KernelKind.EMITTED, KernelKind.COLLECTIVE):
        return NEVER
    if kernel.kind is KernelKind.LIBRARY:
        if launcher.library and CONVERTS.search(kernel.name):
            return AUXILIARY
        return NEVER
    if launcher.library:
        return BEFORE
    if kernel.kind is KernelKind.MEMSET and not launcher.clears and not launcher.copies:
        return 0
    return NEVER


def _score_after(kernel: Kernel | str, launcher: Launcher) -> int:
    if isinstance(kernel, str):
        if kernel == launcher.name:
            return NAMED
        return NEVER
    if not launcher.library:
        return NEVER
    if kernel.kind is KernelKind.EMITTED:  # a sort runs in several passes
        if kernel.family in launcher.families:
            return MORE
        return NEVER
    if kernel.kind is KernelKind.LIBRARY:
        if SUMS.search(kernel.name):
            return AFTER
        if CONVERTS.search(kernel.name):
            return AUXILIARY
        return MORE
    if kernel.kind is not KernelKind.COLLECTIVE:
        return 0
    return NEVER
