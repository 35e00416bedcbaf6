"""Finding of one check of a judge; the worst finding of a series explains its verdict, the others are evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nightjar_ci.formats.verdict import WORST_FIRST, Effect, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check: status, explanation and numbers, as in a verdict.

    Attributes:
        tested_rtol: the largest difference that a same-seed comparison would have let pass; None for other checks.
    """

    status: Status
    explanation: str
    effect: Effect | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None
    tested_rtol: float | None = None


def worst_of(findings: Sequence[Finding]) -> Finding:
    return min(findings, key=lambda finding: WORST_FIRST.index(finding.status))


MANY = 10.0  # from here a relative change reads better as a factor


def percent(relative: float) -> str:
    """A relative change as text: three digits, a power of ten if tiny, a factor if huge.

    >>> percent(0.0312), percent(-0.5), percent(2e-6), percent(3.2e8)
    ('+3.12 %', '-50 %', '+2e-06', 'x 3.2e8')
    """
    if relative != 0 and abs(relative) < 1e-4:
        return f"{relative:+.1g}"
    if relative >= MANY:
        return factor(relative)
    if relative:
        return f"{100 * relative:+.3g} %"
    return "0 %"


def factor(relative: float) -> str:
    """A relative change as a factor.

    >>> factor(11.5), factor(3.2e8), factor(float("inf"))
    ('x 12.5', 'x 3.2e8', 'x inf')
    """
    return "x " + re.sub(r"e\+0*", "e", f"{1 + relative:.3g}")


def show_change(relative: float, digits: int) -> str:
    """A relative change in percent, or as a factor if large.

    >>> show_change(0.0312, 1), show_change(11.5, 1)
    ('+3.1 %', 'x 12.5')
    """
    if relative >= MANY:
        return factor(relative)
    return f"{100 * relative:+.{digits}f} %"


def show_p(p: float) -> str:
    """A p-value as text; one too small for a float is not shown as 0.

    >>> show_p(0.0213), show_p(1.5e-300), show_p(0.0)
    ('p = 0.021', 'p = 1.5e-300', 'p < 1e-300')
    """
    return f"p = {p:.2g}" if p >= 1e-300 else "p < 1e-300"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def listed(numbers: Sequence[int], noun: str) -> str:
    """Numbers with their noun: `seed 1`, `seeds 0, 2`."""
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
