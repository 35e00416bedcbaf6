"""Time to a target, compared with MLPerf's reference convergence points.

In: the curves of a night's runs, a target and the points. Out: findings; and the point of a cell's own seeds. They are
*regressed* where the runs converge more slowly than the reference, and also where they converge faster than MLPerf
accepts: their checker refuses such a submission, for something else is trained. That side needs four runs: the fastest
and the slowest are left out.

Source: MLPerf Training's rules; mlcommons/logging, rcp_checker.py, which tests the fast side only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nightjar_ci.baselines.baseline import ConvergenceBaseline
from nightjar_ci.baselines.reference_points import ReferencePoint, find_point, olympic_mean
from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import Effect
from nightjar_ci.judges.convergence.envelope import Array
from nightjar_ci.judges.convergence.target import find_times, judge_target
from nightjar_ci.judges.finding import Finding, count, listed
from nightjar_ci.judges.student_t import t_quantile

BATCH_SIZES = ("global_batch_size", "batch_size")  # in the configuration of a run, or its samples
LEAST_RUNS = 4  # for MLPerf's side
ALPHA = 0.05  # of MLPerf's one-sided test
WINDOW = 0.1  # share of a curve whose mean has to reach the target, as in the judge of time to a target


def compare_with_points(
    name: str, runs: Sequence[RunRecord], points: Sequence[ReferencePoint], policy: ConvergencePolicy
) -> Iterator[Finding]:
    """Compares the runs' times to the policy's target with those of the reference.

    Args:
        name: of the curve; its steps are in the unit of the points.
        runs: intact, at least one.
        points: of the benchmark, the smallest batch first.
        policy: of the curve.
    """
    if policy.target is None:
        text = f"There are reference convergence points and no target of {name}: give its policy one, `target = ...`."
        yield Finding(status="cannot_tell", explanation=text)
        return
    sizes = {_batch_size(run) for run in runs}
    size = next(iter(sizes))
    if len(sizes) > 1 or size is None:
        text = f"The runs' batch size is not known ({' or '.join(BATCH_SIZES)} in their configuration or samples)"
        text += ", or not the same: no reference convergence point can be chosen."
        yield Finding(status="cannot_tell", explanation=text)
        return
    point = find_point(points, size)
    if point is None:
        batches = ", ".join(str(entry.batch_size) for entry in points)
        text = f"No reference convergence point for a batch size of {size}, nor two around it; there are {batches}."
        yield Finding(status="cannot_tell", explanation=text)
        return
    times = np.array([time_to(run, name, policy.target) for run in runs])
    old = np.array(point.times)
    seeds = [run.seed for run in runs]
    missed = [run.seed for run, time in zip(runs, times, strict=True) if np.isnan(time)]
    if missed:
        text = (
            f"The {name} never reaches {policy.target:g} ({listed(missed, 'seed')}); the runs of {point.name} reach it "
        )
        yield Finding(status="regressed", explanation=f"{text}after {old.max():.6g} at the latest.")
        return
    finding = judge_target(
        name, times, old, seeds, (), target=policy.target, slower=policy.slower, tail=policy.alpha / 2
    )
    yield replace(finding, explanation=f"{finding.explanation} ({point.name}: {count(len(old), 'run')}.)")
    yield from _check_speed(name, times, point)


def _check_speed(name: str, times: Array, point: ReferencePoint) -> Iterator[Finding]:
    """Whether MLPerf would call the runs too fast."""
    if len(times) < LEAST_RUNS:
        return
    least, mean = least_mean(point, len(times)), olympic_mean(times.tolist())
    if mean < least:
        text = f"The {name} reaches the target after {mean:.6g} (Olympic mean), and MLPerf accepts no fewer than "
        text += f"{least:.6g} of {count(len(times), 'run')} ({point.name}): too fast, so something else is trained."
        effect = Effect(value=mean / point.mean - 1, unit=f"time to a {name} at the target")
        yield Finding(status="regressed", explanation=text, effect=effect)
    elif mean < point.mean:
        text = f"MLPerf would multiply the result with {point.mean / mean:.4g}: it converges after {mean:.6g}, and "
        yield Finding(status="ok", explanation=f"{text}the reference {point.name} after {point.mean:.6g}.")


def time_to(run: RunRecord, name: str, target: float) -> float:
    """The step of the first value at the target or beyond; nan where there is none."""
    curve = run.curve(name)
    if curve is None:
        return float("nan")
    values = np.array(curve.values)
    reached = values >= target
    if curve.better == "lower":
        reached = values <= target
    if not reached.any():
        return float("nan")
    return max(1.0, float(curve.steps[int(reached.argmax())]))  # its logarithm is taken


def _batch_size(run: RunRecord) -> int | None:
    """As the configuration or a sample says; MLPerf's logs have lines `global_batch_size`, which adapters read."""
    for name in BATCH_SIZES:
        value = run.config.get(name)
        if value is None and (sample := run.sample(name)) is not None:
            value = sample.level
        if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer():
            return int(value)
    return None


def least_mean(point: ReferencePoint, runs: int) -> float:
    """The smallest Olympic mean of that many runs that MLPerf accepts: below it they converge too fast."""
    ours, theirs = runs - 2, len(point.times) - 2 * point.left_out
    quantile = t_quantile(ALPHA, ours + theirs - 2)
    return point.mean - quantile * point.stdev * math.sqrt(1 / ours + 1 / theirs)


def make_point(baseline: ConvergenceBaseline, curve: str, target: float, benchmark: str) -> ReferencePoint:
    """The point of a cell's baseline: the samples that each seed takes to a target.

    Raises:
        InputError: there is no such curve, no batch size, or a seed that does not reach the target.
    """
    cell, reference = baseline.cell, baseline.curve(curve)
    if reference is None:
        names = ", ".join(entry.name for entry in baseline.curves)
        raise InputError(f"{cell}: its baseline has no curve {curve!r}, expected one of {names}.")
    batch = baseline.config.get("batch_size")
    if not isinstance(batch, int) or isinstance(batch, bool):
        raise InputError(f"{cell}: its configuration has no `batch_size`, by which samples are counted.")
    values = np.array(list(reference.seeds.values()), dtype=np.float64)
    window = max(1, round(WINDOW * len(reference.steps)))
    steps = find_times(values, reference.steps, target, lower=reference.better == "lower", window=window)
    missed = [str(seed) for seed, step in zip(reference.seeds, steps, strict=True) if math.isnan(step)]
    if missed:
        raise InputError(f"{cell}: the {curve} of seed {', '.join(missed)} does not reach {target:g}.")
    return ReferencePoint(
        name=f"{benchmark}_ref_{batch}",
        benchmark=benchmark,
        batch_size=batch,
        times=tuple(batch * float(step) for step in steps),
    )
