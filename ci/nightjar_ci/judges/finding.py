"""What did one part of a judge find? The worst finding of a series explains its verdict; the others are evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nightjar_ci.verdict import WORST_FIRST, Effect, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A part's answer, in the words and numbers of a verdict."""

    status: Status
    explanation: str
    effect: Effect | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None


def worst_of(findings: Sequence[Finding]) -> Finding:
    """The worst finding; of equals the first."""
    return min(findings, key=lambda finding: WORST_FIRST.index(finding.status))


def percent(relative: float) -> str:
    """A relative change for people: three digits, or a power of ten where it is tiny.

    >>> percent(0.0312), percent(-0.5), percent(2e-6)
    ('+3.12 %', '-50 %', '+2e-06')
    """
    if relative != 0 and abs(relative) < 1e-4:
        return f"{relative:+.1g}"
    return f"{100 * relative:+.3g} %" if relative else "0 %"


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 seed`, `3 seeds`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def listed(numbers: Sequence[int], noun: str) -> str:
    """Numbers with their noun: `seed 1`, `seeds 0, 2`."""
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
