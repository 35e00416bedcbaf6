"""Time of a training to reach a target, compared with the baseline's seeds.

In: measured curves, a target, the better direction. Out: for each curve the step at which its running mean reaches the
target, and a finding on the change of that time. docs/statistics.md derives it.

Source: the measure (samples to a target quality) is from MLPerf Training's rules; their checker tests only whether a
run is too fast, this one tests both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nightjar_ci.formats.verdict import Effect, Status
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.convergence.envelope import find_change
from nightjar_ci.judges.finding import Finding, count, listed, percent


def find_times(curves: Array, steps: Sequence[int], target: float, *, lower: bool, window: int) -> Array:
    """The first step at which the mean of the last `window` values reaches the target.

    Args:
        curves: shape (runs, steps), in the unit of the target.
        target: reached if the mean is at it or beyond.
        window: values in the running mean; fewer at the start.

    Returns: shape (runs,), counted from one so that it has a logarithm; nan if the target is never reached.
    """
    sums = np.cumsum(curves, axis=1)
    sums[:, window:] = sums[:, window:] - sums[:, :-window]
    means = sums / np.minimum(np.arange(1, curves.shape[1] + 1), window)
    reached = means >= target
    if lower:
        reached = means <= target
    first = reached.argmax(axis=1)
    times: Array = np.where(reached.any(axis=1), np.asarray(steps)[first] + 1.0, np.nan)
    return times


def judge_target(
    name: str,
    new: Array,
    old: Array,
    seeds: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    *,
    target: float,
    slower: float,
    tail: float,
) -> Finding:
    """Compares times to a target.

    Args:
        new: times of the night's runs, shape (m,); nan if the target was not reached.
        old: times of the baseline's seeds, shape (n,).
        pairs: indices into `new` and `old` of equal seeds.
        tail: rate at which an unchanged program is called slower.
    """
    if np.isnan(old).any():
        text = f"Only {int(np.isfinite(old).sum())} of {len(old)} baseline seeds reach a {name} of {target:g}: "
        return Finding(status="cannot_tell", explanation=text + "choose a target that all of them reach.")
    missed = [seed for seed, time in zip(seeds, new, strict=True) if math.isnan(time)]
    if missed:
        text = f"The {name} never reaches {target:g} ({listed(missed, 'seed')}); "
        text += f"{count(len(old), 'baseline seed')} reach it at step {old.max() - 1:.0f} at the latest."
        return Finding(status="regressed", explanation=text)
    log_new, log_old = np.log(new), np.log(old)
    change = find_change(log_new, log_old, np.array([log_new[i] - log_old[j] for i, j in pairs]), tail=tail)
    interval = (math.expm1(change.low), math.expm1(change.high))
    effect = Effect(value=math.expm1(change.estimate), unit=f"time to a {name} of {target:g}")
    text = f"Time to a {name} of {target:g}: {percent(effect.value)} ({percent(interval[0])} to {percent(interval[1])})"
    allowed = f"{100 * slower:.3g} %"
    status: Status = "cannot_tell"
    conclusion = f"too uncertain to tell whether it is slower by more than {allowed}: run more seeds"
    if change.high < 0:
        status, conclusion = "improved", "faster"
    elif change.high < math.log1p(slower):
        status, conclusion = "ok", f"not slower by more than {allowed}"
    elif change.low > math.log1p(slower):
        status, conclusion = "regressed", f"slower, and the allowed {allowed} is exceeded"
    elif change.low > 0:
        status, conclusion = "regressed", f"slower, and the allowed {allowed} may be exceeded"
    return Finding(status=status, explanation=f"{text}: {conclusion}.", effect=effect, interval=interval, p=change.p)
