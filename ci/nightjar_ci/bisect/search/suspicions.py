"""The prior of a search with suspected culprits.

In: the names of rungs and a regular expression. Out: the weight of each culprit. A suspicion is weak on purpose: a
wrong one costs a test or two, and never rules a rung out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SUSPECTED = 20.0  # times as probable as a rung that nobody suspects


def weigh_suspicions(names: Sequence[str], suspect: str | None) -> list[float]:
    """Weight of each culprit 1 to N - 1.

    Args:
        names: of all rungs; case does not count.
        suspect: matches suspected names; None if nothing is suspected.

    >>> weigh_suspicions(["a", "Bump XLA", "fix docs"], "xla")
    [20.0, 1.0]
    """
    if suspect is None:
        return [1.0] * (len(names) - 1)
    pattern = re.compile(suspect, re.IGNORECASE)
    return [SUSPECTED if pattern.search(name) else 1.0 for name in names[1:]]
