"""Time that `nnx.eval_shape` takes, which grows with the square of the number of blocks.

Counted are Python calls and not seconds, so that the answer is the same on every machine. Seen with Flax 0.12.8.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

FEW, MANY = 10, 40
LINEAR = 1.5  # times as many calls as by the number of blocks alone: more is not linear


def look() -> str | None:
    """How much faster than the blocks the calls grow; None where both grow alike."""
    import jax  # noqa: F401, imported before anything is counted
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)
            self.norm = nnx.RMSNorm(8, rngs=rngs)

    class Stack(nnx.Module):
        def __init__(self, count: int) -> None:
            rngs = nnx.Rngs(0)
            self.blocks = nnx.List([Block(rngs) for _ in range(count)])

    nnx.eval_shape(lambda: Stack(1))  # what is traced once
    few, many = (count_calls(lambda count=count: nnx.eval_shape(lambda: Stack(count))) for count in (FEW, MANY))
    return describe(few, many)


def count_calls(work: Any) -> int:
    """Python calls of a function."""
    calls = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def describe(few: int, many: int) -> str | None:
    """What the calls of FEW and of MANY blocks say.

    >>> describe(1_000, 4_100)
    >>> describe(1_000, 9_000)
    '40 blocks take 9.0 times the calls of 10'
    """
    growth = many / few
    if growth > LINEAR * MANY / FEW:
        return f"{MANY} blocks take {growth:.1f} times the calls of {FEW}"
    return None
