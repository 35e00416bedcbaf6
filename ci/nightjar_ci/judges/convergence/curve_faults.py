"""Faults of a single curve: NaN, infinite, diverged, or with missing steps.

In: a run, and the expected steps of its curve. Out: a finding for the first fault, or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.judges.finding import Finding


def expected_steps(runs: Sequence[RunRecord], name: str) -> tuple[int, ...]:
    return tuple(sorted({step for run in runs if (curve := run.curve(name)) for step in curve.steps}))


def find_faults(run: RunRecord, name: str, steps: Sequence[int]) -> Iterator[Finding]:
    curve = run.curve(name)
    seed = f"seed {run.seed}"
    if curve is None:
        yield Finding(status="regressed", explanation=f"{seed} has no curve {name!r}.")
        return
    bad = next(((s, v) for s, v in zip(curve.steps, curve.values, strict=True) if not math.isfinite(v)), None)
    if bad is not None:
        value = "infinite"
        if math.isnan(bad[1]):
            value = "NaN"
        yield Finding(status="regressed", explanation=f"The {name} of {seed} is {value} from step {bad[0]} on.")
        return
    last = max(curve.steps, default=None)
    if run.status == "diverged":
        where = "before its first step"
        if last is not None:
            where = f"after step {last}"
        yield Finding(status="regressed", explanation=f"The training of {seed} diverged {where}.")
        return
    missing = sorted(set(steps) - set(curve.steps))
    if missing:
        if last is None or missing[0] > last:
            text = f"The {name} of {seed} ends at step {last}, expected {steps[-1]}."
        else:
            text = f"The {name} of {seed} lacks {len(missing)} of {len(steps)} steps, the first is {missing[0]}."
        yield Finding(status="regressed", explanation=text)
        return
    extra = sorted(set(curve.steps) - set(steps))
    if extra:
        text = (
            f"The {name} of {seed} has steps that the baseline lacks, the first is {extra[0]}: not the same training."
        )
        yield Finding(status="cannot_tell", explanation=text)
