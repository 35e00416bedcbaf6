"""The finding of an ecosystem cell: checked numbers and their speed.

In: the results of a cell. Out: a `Finding`, whose checks hold or not. Nothing here imports JAX or a library under test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nightjar_models.measuring.result import Sample


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A number that is known beforehand.

    Attributes:
        name: a key, such as `posterior_mean_error`.
        value: computed.
        expected: the right value.
        tolerance: how far it may be from that, itself included.
        why: where the expected number is from.
    """

    name: str
    value: float
    expected: float
    tolerance: float
    why: str

    @property
    def holds(self) -> bool:
        """Whether the number is true; one that is not a number never is.

        >>> Check(name="x", value=1.01, expected=1.0, tolerance=0.1, why="").holds
        True
        >>> Check(name="x", value=float("nan"), expected=1.0, tolerance=0.1, why="").holds
        False
        """
        return abs(self.value - self.expected) <= self.tolerance

    def __str__(self) -> str:
        return f"{self.name} is {self.value:.6g}, expected {self.expected:.6g} +- {self.tolerance:.3g} ({self.why})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a cell.

    Attributes:
        checks: at least one.
        samples: times and rates.
    """

    checks: Sequence[Check]
    samples: Sequence[Sample] = ()


class CannotTellError(Exception):
    """This machine lacks a part that the cell needs (a GPU): neither works nor broken."""


@contextlib.contextmanager
def compile_quickly() -> Iterator[None]:
    """Programs compiled within are optimized little: for programs that take far longer to compile than to run."""
    import jax

    option = "jax_disable_most_optimizations"
    before = jax.config.read(option)  # type: ignore[no-untyped-call]
    jax.config.update(option, True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        jax.config.update(option, before)  # type: ignore[no-untyped-call]


def time_calls(call: Callable[[], Any], *, items: float, unit: str, calls: int = 10) -> list[Sample]:
    """Times a call that compiles the first time: `first_call_time`, `step_time` and `throughput`.

    Args:
        call: runs the work and returns arrays, which are waited for.
        items: how many units of work one call does.
        unit: of the throughput, such as `steps/s`.
        calls: how many calls are timed after the first.
    """
    import jax

    times = []
    for _ in range(calls + 1):
        begin = time.perf_counter()
        jax.block_until_ready(call())  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - begin)
    first, *steady = times
    return [
        Sample(name="first_call_time", unit="s", better="lower", values=[first]),
        Sample(name="step_time", unit="s", better="lower", values=steady),
        Sample(name="throughput", unit=unit, better="higher", values=[items * len(steady) / sum(steady)]),
    ]
