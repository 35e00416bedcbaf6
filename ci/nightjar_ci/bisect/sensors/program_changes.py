"""The rungs of a ladder at which the compiled programs change, found by halving. Deterministic: no rung is run twice.

In: a way to run a rung once and get the digest of its programs. Out: `ProgramChanges`, and from these the prior of the
search by time. Halving continues while only one half of a range differs. If both do, there are several changes, and
only a clock tells which of them matters: the search by time continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

# A slowdown mostly comes with a changed program, if there is one; the rest of the prior is for changes of the runtime.
SHARE_OF_CHANGES = 0.9

Sense = Callable[[int], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramChanges:
    """The rungs at which the programs change.

    Attributes:
        digests: of the rungs that were run; None if a rung could not be run.
        ranges: (a, b) for each two neighbouring digests that differ: the programs of rungs a and b differ.
    """

    digests: Mapping[int, str | None]
    ranges: tuple[tuple[int, int], ...]

    @property
    def exact(self) -> tuple[int, int] | None:
        """The two rungs of the only change, if no runnable rung is left between them."""
        if len(self.ranges) != 1:
            return None
        low, high = self.ranges[0]
        if all(rung in self.digests for rung in range(low, high + 1)):
            return low, high
        return None


def find_program_changes(n_rungs: int, sense: Sense, *, everywhere: bool = False) -> ProgramChanges | None:
    """Halves the ladder between rungs whose programs differ.

    Args:
        sense: runs a rung once; None if it cannot be run or compiles nothing.
        everywhere: search both halves if both differ: finds all changes, with more runs.

    Returns:
        The changes, or None if an end has no programs.

    >>> changes = find_program_changes(9, lambda rung: "old" if rung < 6 else "new")
    >>> changes.exact, sorted(changes.digests)
    ((5, 6), [0, 4, 5, 6, 8])
    """
    digests: dict[int, str | None] = {}
    for end in (0, n_rungs - 1):
        digests[end] = sense(end)
        if digests[end] is None:
            return None
    open_ranges = [(0, n_rungs - 1)]
    while open_ranges:
        low, high = open_ranges.pop(0)
        fresh = [rung for rung in range(low + 1, high) if rung not in digests]
        middle = min(fresh, key=lambda rung: abs(2 * rung - low - high), default=None)
        if digests[low] == digests[high] or middle is None:
            continue
        digests[middle] = sense(middle)
        if digests[middle] is None:
            open_ranges.insert(0, (low, high))
            continue
        halves = [pair for pair in ((low, middle), (middle, high)) if digests[pair[0]] != digests[pair[1]]]
        if len(halves) == 1 or everywhere:
            open_ranges += halves
    run = sorted(rung for rung, digest in digests.items() if digest is not None)
    ranges = tuple((a, b) for a, b in pairwise(run) if digests[a] != digests[b])
    return ProgramChanges(digests=digests, ranges=ranges)


def weigh_culprits(n_rungs: int, changes: ProgramChanges, alike: Collection[int]) -> list[float]:
    """The prior of the search: weight of each culprit 1 to N - 1.

    Args:
        alike: rungs with the compiled runtime of the one before: if their programs are equal too, only Python is left,
            which is seldom the culprit.
    """
    changing = [rung for low, high in changes.ranges for rung in range(low + 1, high + 1)]
    other = [rung for rung in range(1, n_rungs) if rung not in set(changing)]
    weights = dict.fromkeys(other, 1.0) | {rung: 0.1 for rung in other if rung in alike}
    total = sum(weights.values())
    share = SHARE_OF_CHANGES if changing and other else float(bool(changing))
    weights = {rung: weight / total * (1 - share) for rung, weight in weights.items()}
    weights |= {rung: share / len(changing) for rung in changing}
    return [weights[rung] for rung in range(1, n_rungs)]
