"""Convergence judge: compares a curve of a cell's seeds with committed baseline curves.

In: the night's results of a cell, the baseline, a policy. Out: one verdict. Broken curves come first, then the
same-seed comparison (sharp: one run shows any difference larger than rounding), then the envelope of ten seeds and
the final value (for legitimate changes of numerics, such as another compiler version). docs/statistics.md derives each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from nightjar_ci.baselines.baseline import BaselineCurve, ConvergenceBaseline, data_digest
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import Effect, Status, Verdict
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.convergence.curve_faults import expected_steps, find_faults
from nightjar_ci.judges.convergence.envelope import block_means, find_change, find_envelope
from nightjar_ci.judges.convergence.same_seed import compare_same_seed, describe_processors, find_reference
from nightjar_ci.judges.convergence.scale import as_relative, on_scale
from nightjar_ci.judges.finding import Finding, count, listed, percent, worst_of

SHARP = 0.01  # a larger limit for the same seed does not show that a curve is reproduced


def judge_convergence(
    cell: str,
    name: str,
    runs: Sequence[RunRecord],
    baseline: ConvergenceBaseline | None,
    policy: ConvergencePolicy,
) -> Verdict:
    """Judges one curve of a cell.

    Args:
        runs: the night's results of the cell, at least one; `job` is the job's id.
        policy: a policy without `same_as`.
    """
    reference, steps = None, expected_steps(runs, name)
    if baseline is not None and (reference := baseline.curve(name)) is not None:
        steps = reference.steps
    faults = [finding for run in runs for finding in find_faults(run, name, steps)]
    findings = list(faults)
    intact = [run for run in runs if not any(find_faults(run, name, steps))]
    if intact:
        if baseline is None or reference is None:
            findings.append(Finding(status="cannot_tell", explanation=_no_baseline(cell, name)))
        else:
            findings += _compare(name, intact, baseline, reference, policy)
    worst = worst_of(findings)
    details = [finding.explanation for finding in findings if finding is not worst]
    quoted = policy.numbers()
    if worst in faults:
        quoted["fault"] = True  # of the curve by itself, whatever it is compared with
    if worst.tested_rtol is not None:
        quoted["tested_rtol"] = worst.tested_rtol
    if baseline is not None and worst.status != "ok":
        details += _differences(runs[0], baseline)
    return Verdict(
        series=f"{cell}/{name}",
        judge="convergence",
        status=worst.status,
        effect=worst.effect,
        interval=worst.interval,
        p=worst.p,
        n=len(runs),
        policy=quoted,
        runs=tuple(run.job for run in runs),
        explanation=worst.explanation,
        details=tuple(details),
    )


def _no_baseline(cell: str, name: str) -> str:
    return f"There is no baseline of {name}: make one with `nightjar-ci baseline MATRIX --jobs '{cell}*' --seeds 0:10`."


def _compare(
    name: str,
    runs: Sequence[RunRecord],
    baseline: ConvergenceBaseline,
    reference: BaselineCurve,
    policy: ConvergencePolicy,
) -> Iterator[Finding]:
    units = {(curve.unit, curve.better) for run in runs if (curve := run.curve(name))}
    if units != {(reference.unit, reference.better)}:
        now = " and ".join(sorted(f"{unit} ({better} is better)" for unit, better in units))
        text = f"{name} is in {now}, the baseline's in {reference.unit} ({reference.better} is better)."
        yield Finding(status="cannot_tell", explanation=f"{text} Make a new baseline if the change is intended.")
        return
    digest = data_digest(runs[0])
    if digest != baseline.data_digest:
        text = f"The training data differs from the baseline's (digest {digest} instead of {baseline.data_digest})."
        yield Finding(status="cannot_tell", explanation=f"{text} Make a new baseline if the change is intended.")
        return
    new = on_scale([curve.values for run in runs if (curve := run.curve(name))], policy.scale)
    old = on_scale(list(reference.seeds.values()), policy.scale)
    if new is None or old is None:
        text = f"{name} has values that are not positive: set scale = 'linear' in its policy."
        yield Finding(status="cannot_tell", explanation=text)
        return
    row = {seed: index for index, seed in enumerate(reference.seeds)}
    pairs = [(index, row[run.seed]) for index, run in enumerate(runs) if run.seed in row]
    same_seed = [find_reference(name, runs[index], baseline, reference, policy) for index, _ in pairs]
    shape = (len(pairs), new.shape[1])
    shifts = new[[index for index, _ in pairs]] - np.reshape([same.values for same in same_seed], shape)
    limits = np.reshape([same.limits for same in same_seed], shape)
    all_paired = len(pairs) == len(runs)
    if all_paired and (finding := _reproduced(name, runs, shifts, limits, reference, policy)) is not None:
        yield replace(finding, explanation=finding.explanation + describe_processors(same_seed))
        return
    early = list(compare_same_seed(name, [runs[i] for i, _ in pairs], shifts, same_seed, policy, reference))
    yield from (finding for finding in early if finding.status != "ok")
    if len(old) < policy.min_seeds:
        text = f"The baseline has {count(len(old), 'seed')}, an envelope needs {policy.min_seeds}."
        yield Finding(status="cannot_tell", explanation=text)
        return
    tail = policy.alpha / 2  # the envelope has one half, the final value the other
    yield from _envelope(name, runs, new, old, reference, policy, tail)
    final = _final(name, new, old, pairs, reference, policy, tail)
    tested = int(np.minimum.accumulate((limits <= SHARP).all(axis=0)).sum())  # leading steps with a useful limit
    if final.status == "cannot_tell" and not early and all_paired and tested:
        verb = _verb(runs, "equal")
        text = f"{count(len(runs), 'seed')} {verb} the baseline's same seed for {count(tested, 'step')}, up to step "
        rtol, last = float(limits[:, :tested].max()), float(limits[:, -1].max())
        text += f"{reference.steps[tested - 1]}, within {rtol:.1g}: the program computes the same numbers. "
        if np.isfinite(last):
            text += f"Later rounding explains up to {last:.1g}, so only the envelope and the end tell."
        else:
            text += "Later steps are compared with other seeds only, by the envelope."
        text += describe_processors(same_seed)
        yield replace(final, status="ok", explanation=text, tested_rtol=rtol)
    else:
        yield final
    yield from (finding for finding in early if finding.status == "ok")


def _reproduced(
    name: str,
    runs: Sequence[RunRecord],
    shifts: Array,
    limits: Array,
    reference: BaselineCurve,
    policy: ConvergencePolicy,
) -> Finding | None:
    """An ok if every run stays within its limit and within `SHARP` at every step."""
    sharp = np.minimum(np.where(np.isfinite(limits), limits, policy.early_rtol), SHARP)
    if (np.abs(shifts) > sharp).any():
        return None
    worst = float(shifts.flat[np.abs(shifts).argmax()])
    text = f"{count(len(runs), 'seed')} {_verb(runs, 'reproduce')} the baseline's curves to {abs(worst):.1g} "
    text += f"over {count(shifts.shape[1], 'value')} (up to step {reference.steps[-1]}), and no step "
    if not np.isfinite(limits).all():
        text += f"before {policy.early_steps} "
    text += f"may differ by more than {sharp.max():.1g}."
    effect = Effect(value=as_relative(worst, policy.scale), unit=name)
    return Finding(status="ok", explanation=text, effect=effect, tested_rtol=float(sharp.max()))


def _envelope(
    name: str,
    runs: Sequence[RunRecord],
    new: Array,
    old: Array,
    reference: BaselineCurve,
    policy: ConvergencePolicy,
    tail: float,
) -> Iterator[Finding]:
    """Curves outside the envelope of the baseline's seeds, on either side."""
    least = policy.early_rtol
    if policy.scale == "linear":  # accuracies are counts: one example more or less is none of the program's
        least = max(least, policy.margin / 10)
    bounds = find_envelope(old, blocks=policy.blocks, runs=len(runs), tail=tail, least=least)
    _, means = block_means(new, policy.blocks)
    worse, better = means - bounds.high, bounds.low - means
    if reference.better == "higher":
        worse, better = better, worse
    sides: tuple[tuple[Array, Status, str], ...] = ((worse, "regressed", "worse"), (better, "improved", "better"))
    for beyond, status, word in sides:
        if (beyond <= 0).all():
            continue
        run_index, block = np.unravel_index(int(beyond.argmax()), beyond.shape)
        since = reference.steps[bounds.firsts[int((beyond > 0).any(axis=0).argmax())]]
        change = as_relative(float(means[run_index, block] - bounds.centre[block]), policy.scale)
        seeds = listed([run.seed for run, out in zip(runs, beyond.max(axis=1) > 0, strict=True) if out], "seed")
        step = reference.steps[bounds.firsts[int(block)]]
        text = f"From step {since} on the {name} is {word} than {len(old)} baseline seeds allow ({seeds}; "
        text += f"{percent(change)} against their mean around step {step})."
        effect = Effect(value=change, unit=f"{name} around step {step}")
        outside = np.where(beyond > 0, means, bounds.centre)
        yield Finding(status=status, explanation=text, effect=effect, p=bounds.p(outside))


def _final(
    name: str,
    new: Array,
    old: Array,
    pairs: Sequence[tuple[int, int]],
    reference: BaselineCurve,
    policy: ConvergencePolicy,
    tail: float,
) -> Finding:
    """Non-inferiority test of the mean of the last steps, and a check for values too good to be true."""
    last = max(1, round(policy.final_fraction * len(reference.steps)))
    sign = 1 if reference.better == "lower" else -1
    ends, base = sign * new[:, -last:].mean(axis=1), sign * old[:, -last:].mean(axis=1)  # now lower is better
    change = find_change(ends, base, np.array([ends[i] - base[j] for i, j in pairs]), tail=tail)

    def shown(difference: float) -> float:
        return as_relative(sign * difference, policy.scale)

    ordered = sorted((shown(change.low), shown(change.high)))
    interval = (ordered[0], ordered[1])
    effect = Effect(value=shown(change.estimate), unit=f"final {name}")
    margin, too_good, allowed = policy.margin, policy.too_good, f"{policy.margin:g}"
    if policy.scale == "log":
        margin, too_good, allowed = math.log1p(margin), math.log1p(too_good), f"{100 * margin:.3g} %"
    measured = f"Final {name} {percent(effect.value)} ({percent(interval[0])} to {percent(interval[1])})"
    status: Status = "ok"
    conclusion = f"not worse by more than the allowed {allowed}."
    if float(ends.min() - base.min()) < -too_good:
        best = abs(shown(float(ends.min() - base.min())))
        by = f"{best:.3g}"
        if policy.scale == "log":
            by = f"{100 * best:.3g} %"
        status = "regressed"
        conclusion = f"{by} better than the best of {len(old)} baseline seeds: too good to be true (label leak?)."
    elif change.high < margin:
        if change.high < 0 and change.estimate < -policy.early_rtol:
            status, conclusion = "improved", "better than the baseline's seeds."
    elif change.low > 0:
        status = "regressed"
        verb = "may be"
        if change.low > margin:
            verb = "is"
        conclusion = f"worse than the baseline's seeds, and the allowed {allowed} {verb} exceeded."
    else:
        status = "cannot_tell"
        conclusion = f"too uncertain to tell whether it exceeds the allowed {allowed}: run more seeds or allow more."
    return Finding(status=status, explanation=f"{measured}: {conclusion}", effect=effect, interval=interval, p=change.p)


def _verb(runs: Sequence[RunRecord], verb: str) -> str:
    return verb + "s" if len(runs) == 1 else verb


def _differences(run: RunRecord, baseline: ConvergenceBaseline) -> list[str]:
    groups = (
        ("config", run.config, baseline.config),
        ("package", run.environment.packages, baseline.environment.packages),
        ("flag", run.environment.flags, baseline.environment.flags),
    )
    return [
        f"{group} {key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for group, new, old in groups
        for key in sorted({*new, *old} - {"seed", "out", "data_digest"})
        if new.get(key) != old.get(key)
    ]
