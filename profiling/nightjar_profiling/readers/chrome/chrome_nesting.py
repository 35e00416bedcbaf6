"""Nesting of the events of a thread.

In: the events of one lane by start, the longer first. Out: the parent of each event, and the pieces of time that belong
to an event and to none that it encloses. The pieces of a lane never overlap, so their sum is the time that the lane was
busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nightjar_profiling.readers.chrome.chrome_events import Event

NO_PARENT = -1


def find_parents(events: Sequence[Event]) -> list[int]:
    """The index of the event that encloses each; NO_PARENT for the outermost."""
    parents, around, ends = [], [NO_PARENT], list[float]([math.inf])
    for number, (_, _, _, start_ns, duration_ns, _) in enumerate(events):
        while ends[-1] <= start_ns:
            around.pop()
            ends.pop()
        parents.append(around[-1])
        around.append(number)
        ends.append(start_ns + duration_ns)
    return parents


def cut_pieces(events: Sequence[Event]) -> list[tuple[int, int, int]]:
    """The time of each event that no event inside takes: number of the event, start and end.

    An event that ends after the one that encloses it is cut there.

    >>> outer = Event(lane=("", ""), name="a", category="", start_ns=0, duration_ns=10, args={})
    >>> inner = Event(lane=("", ""), name="b", category="", start_ns=2, duration_ns=3, args={})
    >>> cut_pieces([outer, inner])
    [(0, 0, 2), (1, 2, 5), (0, 5, 10)]
    """
    pieces: list[tuple[int, int, int]] = []
    around: list[tuple[int, int]] = []  # number and end
    now = 0

    def advance(until: int) -> None:
        """Ends what ends until then, and gives the time to the innermost event."""
        nonlocal now
        while around:
            number, end = around[-1]
            stop = min(end, until)
            if stop > now:
                pieces.append((number, now, stop))
                now = stop
            if end > until:
                break
            around.pop()
        now = max(now, until)

    for number, event in enumerate(events):
        advance(event.start_ns)
        end = min([event.end_ns, *(outer_end for _, outer_end in around[-1:])])
        around.append((number, end))
    while around:
        advance(around[-1][1])
    return pieces
