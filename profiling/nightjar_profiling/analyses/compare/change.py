"""Differences of device time, and whether they are more than chance.

In: the mean time of each thing on both sides, with the variance of that mean. Out: changes with a 95 % interval, by the
size of the difference. The interval is Welch's, for the ratio of two means whose spreads differ, by its logarithm (so
that nothing takes less than no time): the relative variances of the means add up. Of the many rows of a list only the
ones that Holm's procedure leaves are certain, so that a list of equal things has a certain row once in twenty times.

Of several captures a side, the variance is that between captures. Of one, only that between executions of one process
is known, and two processes of one program differ by more: another allocation of memory, clock or neighbour. Such a
difference is not certain unless the instructions differ.

Source: B. L. Welch, The generalization of `Student's' problem when several different population variances are involved,
Biometrika 34, 1947; S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 1979
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, inf, log, sqrt
from typing import Any

from nightjar_profiling.analyses.compare.student_t import t_quantile, t_tail

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Device time of one thing on two sides, in nanoseconds per step.

    Attributes:
        before_ns: None: it appeared.
        after_ns: None: it vanished.
        low_ns: of the interval of the difference; None if there are too few executions.
        high_ns: as low_ns.
        certain: whether the difference is more than chance.
    """

    name: str
    before_ns: float | None
    after_ns: float | None
    low_ns: float | None
    high_ns: float | None
    certain: bool = False
    function: str | None = None
    source: str | None = None

    @property
    def delta_ns(self) -> float:
        return (self.after_ns or 0.0) - (self.before_ns or 0.0)

    @property
    def fraction(self) -> float | None:
        """The difference divided by the time before; None if there was none."""
        return self.delta_ns / self.before_ns if self.before_ns else None

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {**asdict(self), "delta_ns": self.delta_ns, "fraction": self.fraction}


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean time of a step, the variance of that mean, and its degrees of freedom (None: unknown spread)."""

    ns: float
    variance: float
    freedom: float | None

    @property
    def relative_variance(self) -> float:
        """By the square of the mean."""
        if self.ns:
            return self.variance / self.ns**2
        return 0.0


def add_means(parts: Iterable[tuple[float, float, int]]) -> Mean:
    """The sum of independent means: of each its value, its variance and the number of samples."""
    parts = list(parts)
    ns, variance = sum(part[0] for part in parts), sum(part[1] for part in parts)
    spreads = [(spread, n - 1) for _, spread, n in parts]
    if any(freedom == 0 for _, freedom in spreads):
        return Mean(ns, variance, None)
    lowest = sum(spread**2 / freedom for spread, freedom in spreads)
    return Mean(ns, variance, variance**2 / lowest if lowest > 0 else float(max(f for _, f in spreads)))


def average_captures(captures: Sequence[Mapping[str, Mean]]) -> dict[str, Mean]:
    """The means over captures, by key, with the variance between captures; of one capture, as it is.

    Anything missing from a capture took no time in it.
    """
    if len(captures) == 1:
        return dict(captures[0])
    count, averages = len(captures), {}
    for key in {key for capture in captures for key in capture}:
        values = [capture[key].ns if key in capture else 0.0 for capture in captures]
        mean = sum(values) / count
        spread = sum((value - mean) ** 2 for value in values) / (count - 1)
        averages[key] = Mean(mean, spread / count, float(count - 1))
    return averages


def rank_changes(
    before: Mapping[str, Mean], after: Mapping[str, Mean], judged: Collection[str] | None
) -> tuple[Change, ...]:
    """The changes, by the size of the difference, largest first.

    Args:
        judged: keys whose difference may be certain; None: all.
    """
    compared = {key: _compare(key, before.get(key), after.get(key)) for key in before.keys() | after.keys()}
    certain: set[str] = set()
    for number, (key, (_, chance)) in enumerate(sorted(compared.items(), key=lambda item: (item[1][1], item[0]))):
        if chance >= (1 - CONFIDENCE) / (len(compared) - number):
            break
        if judged is None or key in judged:
            certain.add(key)
    changes = (replace(change, certain=key in certain) for key, (change, _) in compared.items())
    return tuple(sorted(changes, key=lambda change: (-abs(change.delta_ns), change.name)))


def _compare(key: str, old: Mean | None, new: Mean | None) -> tuple[Change, float]:
    before_ns, after_ns = None if old is None else old.ns, None if new is None else new.ns
    change = Change(name=key, before_ns=before_ns, after_ns=after_ns, low_ns=None, high_ns=None)
    sides = [mean for mean in (old, new) if mean is not None]
    if any(mean.freedom is None for mean in sides):
        return change, 1.0
    sides = [mean for mean in sides if mean.ns > 0]
    if not sides:
        return replace(change, low_ns=0.0, high_ns=0.0), 1.0
    variance = sum(mean.relative_variance for mean in sides)
    terms = sum(mean.relative_variance**2 / (mean.freedom or 1.0) for mean in sides)
    if terms > 0:
        freedom = variance**2 / terms
    else:
        freedom = min(mean.freedom or 1.0 for mean in sides)
    margin = t_quantile((1 - CONFIDENCE) / 2, freedom) * sqrt(variance)
    if before_ns and after_ns:
        ratio = log(after_ns / before_ns)
        low, high = before_ns * (exp(ratio - margin) - 1), before_ns * (exp(ratio + margin) - 1)
    elif after_ns:
        ratio, low, high = 1.0, after_ns * exp(-margin), after_ns * exp(margin)
    else:
        ratio, low, high = 1.0, -(before_ns or 0.0), -(before_ns or 0.0) * exp(-margin)
    if variance:
        distance = abs(ratio) / sqrt(variance)
    else:
        distance = inf if ratio else 0.0
    return replace(change, low_ns=low, high_ns=high), 2 * t_tail(distance, freedom)
