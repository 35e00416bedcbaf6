"""Does the training still learn what it learned? Judges a curve of a cell's seeds against committed baseline curves.

In: tonight's results of a cell, the baseline, a policy. Out: one verdict: broken curves first, then the same-seed
comparison (sharp: sees a change of 1e-4 in one run), then the envelope of ten seeds and the final value (for what may
legitimately change numerics, such as another compiler version). docs/statistics.md derives each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nightjar_ci.baselines import BaselineCurve, ConvergenceBaseline, data_digest
from nightjar_ci.judges.curve_faults import expected_steps, find_faults
from nightjar_ci.judges.envelope import Array, block_means, find_change, find_envelope
from nightjar_ci.judges.finding import Finding, count, listed, percent, worst_of
from nightjar_ci.policy import ConvergencePolicy
from nightjar_ci.record import Environment, RunRecord
from nightjar_ci.verdict import Effect, Status, Verdict


def judge_convergence(
    cell: str,
    name: str,
    runs: Sequence[RunRecord],
    baseline: ConvergenceBaseline | None,
    policy: ConvergencePolicy,
) -> Verdict:
    """Judges one curve of a cell.

    Args:
        cell: id of the cell.
        name: name of the curve.
        runs: tonight's results of the cell, at least one; `job` is the job's id.
        baseline: the committed baseline of the cell, or None.
        policy: a policy without `same_as`.
    """
    known = None if baseline is None else baseline.curve(name)
    steps = expected_steps(runs, name) if known is None else known.steps
    findings = [finding for run in runs for finding in find_faults(run, name, steps)]
    whole = [run for run in runs if not any(find_faults(run, name, steps))]
    if whole:
        if baseline is None or known is None:
            findings.append(Finding(status="cannot_tell", explanation=_no_baseline(cell, name)))
        else:
            findings += _compare(name, whole, baseline, known, policy)
    worst = worst_of(findings)
    details = [finding.explanation for finding in findings if finding is not worst]
    details += _differences(runs[0], baseline) if baseline is not None and worst.status != "ok" else []
    return Verdict(
        series=f"{cell}/{name}",
        judge="convergence",
        status=worst.status,
        effect=worst.effect,
        interval=worst.interval,
        p=worst.p,
        n=len(runs),
        policy=policy.numbers(),
        runs=tuple(run.job for run in runs),
        explanation=worst.explanation,
        details=tuple(details),
    )


def same_numerics(run: Environment, baseline: Environment) -> bool:
    """Whether two environments should compute the same numbers: same jaxlib, backend, device kinds and count."""
    return (run.facts_key, run.backend) == (baseline.facts_key, baseline.backend)


def on_scale(values: Sequence[Sequence[float]], scale: str) -> Array | None:
    """Curves on the scale of a policy, shape (runs, steps); None where a logarithm does not exist."""
    curves = np.asarray(values, dtype=np.float64)
    if scale == "linear":
        return curves
    return None if (curves <= 0).any() else np.log(curves)


def as_relative(difference: float, scale: str) -> float:
    """A difference on the policy's scale as an effect: relative where the scale is a logarithm."""
    return math.expm1(difference) if scale == "log" else difference


def _no_baseline(cell: str, name: str) -> str:
    return f"There is no baseline of {name}: make one with `nightjar-ci baseline MATRIX --jobs '{cell}*' --seeds 0:10`."


def _compare(
    name: str,
    runs: Sequence[RunRecord],
    baseline: ConvergenceBaseline,
    known: BaselineCurve,
    policy: ConvergencePolicy,
) -> Iterator[Finding]:
    """The findings on whole curves that have a baseline."""
    digest = data_digest(runs[0])
    if digest != baseline.data_digest:
        text = f"The training data is not the baseline's (digest {digest} instead of {baseline.data_digest})."
        yield Finding(status="cannot_tell", explanation=f"{text} Make the baseline anew if that is wanted.")
        return
    new = on_scale([curve.values for run in runs if (curve := run.curve(name))], policy.scale)
    old = on_scale(list(known.seeds.values()), policy.scale)
    if new is None or old is None:
        text = f"{name} has values that are not positive: use scale = 'linear' in its policy."
        yield Finding(status="cannot_tell", explanation=text)
        return
    row = {seed: index for index, seed in enumerate(known.seeds)}
    pairs = [(index, row[run.seed]) for index, run in enumerate(runs) if run.seed in row]
    shifts = np.array([new[i] - old[j] for i, j in pairs]).reshape(len(pairs), new.shape[1])
    if len(pairs) == len(runs) and np.abs(shifts).max() <= policy.early_rtol:
        worst = float(shifts.flat[np.abs(shifts).argmax()])
        verb = "reproduces" if len(runs) == 1 else "reproduce"
        text = f"{count(len(runs), 'seed')} {verb} the baseline's curves to {np.abs(shifts).max():.1g}."
        yield Finding(status="ok", explanation=text, effect=Effect(value=as_relative(worst, policy.scale), unit=name))
        return
    early = list(_early(name, [runs[i] for i, _ in pairs], shifts, baseline, known, policy))
    yield from (finding for finding in early if finding.status != "ok")
    if len(old) < policy.min_seeds:
        text = f"The baseline has {count(len(old), 'seed')}, an envelope needs {policy.min_seeds}."
        yield Finding(status="cannot_tell", explanation=text)
        return
    yield from _envelope(name, runs, new, old, known, policy)
    final = _final(name, new, old, pairs, known, policy)
    if final.status == "cannot_tell" and not early and len(pairs) == len(runs) and known.steps[0] < policy.early_steps:
        verb = "equals" if len(runs) == 1 else "equal"
        text = f"{count(len(runs), 'seed')} {verb} the baseline's same seed before step {policy.early_steps}: "
        text += "the program computes the same numbers, and what rounding grew to later decides nothing."
        yield Finding(status="ok", explanation=text, effect=final.effect, interval=final.interval, p=final.p)
    else:
        yield final
    yield from (finding for finding in early if finding.status == "ok")


def _early(
    name: str,
    runs: Sequence[RunRecord],
    shifts: Array,
    baseline: ConvergenceBaseline,
    known: BaselineCurve,
    policy: ConvergencePolicy,
) -> Iterator[Finding]:
    """The same-seed comparison of the first steps: a departure means that the program computes other numbers."""
    early = np.abs(shifts[:, : sum(step < policy.early_steps for step in known.steps)])
    if not early.size:  # a curve that starts later, such as an evaluation at the end
        return
    left = [index for index in range(len(runs)) if early[index].max() > policy.early_rtol]
    if not left:
        return
    where = min(left, key=lambda index: int((early[index] > policy.early_rtol).argmax()))
    first = int((early[where] > policy.early_rtol).argmax())
    size = float(shifts[where, early[where].argmax()])
    seeds = listed([runs[index].seed for index in left], "seed")
    text = f"The {name} leaves the baseline's same-seed curve at step {known.steps[first]} ({seeds}, "
    text += f"{percent(as_relative(size, policy.scale))} before step {policy.early_steps})"
    effect = Effect(value=as_relative(size, policy.scale), unit=f"{name} of the same seed, early steps")
    if same_numerics(runs[where].environment, baseline.environment):
        text += ", though jaxlib, devices and data are the same: the program computes other numbers."
        yield Finding(status="regressed", explanation=text, effect=effect)
    else:
        other = f"{baseline.environment.facts_key} to {runs[where].environment.facts_key}"
        yield Finding(status="ok", explanation=f"{text}, as may happen from {other}; the envelope decides.")


def _envelope(
    name: str, runs: Sequence[RunRecord], new: Array, old: Array, known: BaselineCurve, policy: ConvergencePolicy
) -> Iterator[Finding]:
    """Curves that leave what the baseline's seeds allow, on either side."""
    bounds = find_envelope(
        old, blocks=policy.blocks, runs=len(runs), tail=policy.alpha / 2, least=policy.early_rtol
    )  # the other half of alpha is the final value's
    _, means = block_means(new, policy.blocks)
    sign = 1 if known.better == "lower" else -1
    above, below = means - bounds.high, bounds.low - means
    sides: tuple[tuple[Array, Status, str], ...] = (
        (above if sign > 0 else below, "regressed", "worse"),
        (below if sign > 0 else above, "improved", "better"),
    )
    for beyond, status, word in sides:
        if (beyond <= 0).all():
            continue
        who, block = np.unravel_index(int(beyond.argmax()), beyond.shape)
        since = known.steps[bounds.firsts[int((beyond > 0).any(axis=0).argmax())]]
        change = as_relative(float(means[who, block] - bounds.centre[block]), policy.scale)
        left = listed([run.seed for run, out in zip(runs, beyond.max(axis=1) > 0, strict=True) if out], "seed")
        at = known.steps[bounds.firsts[int(block)]]
        text = f"From step {since} on the {name} is {word} than {len(old)} baseline seeds allow ({left}; "
        text += f"{percent(change)} against their mean around step {at})."
        effect = Effect(value=change, unit=f"{name} around step {at}")
        yield Finding(status=status, explanation=text, effect=effect)


def _final(
    name: str,
    new: Array,
    old: Array,
    pairs: Sequence[tuple[int, int]],
    known: BaselineCurve,
    policy: ConvergencePolicy,
) -> Finding:
    """Non-inferiority of the mean of the last steps, and whether they are too good to be true."""
    tail = max(1, round(policy.final_fraction * new.shape[1]))
    sign = 1 if known.better == "lower" else -1
    ends, base = sign * new[:, -tail:].mean(axis=1), sign * old[:, -tail:].mean(axis=1)  # now lower is better
    change = find_change(ends, base, np.array([ends[i] - base[j] for i, j in pairs]), tail=policy.alpha / 2)

    def shown(difference: float) -> float:
        return as_relative(sign * difference, policy.scale)

    ordered = sorted((shown(change.low), shown(change.high)))
    interval = (ordered[0], ordered[1])
    effect = Effect(value=shown(change.estimate), unit=f"final {name}")
    margin = math.log1p(policy.margin) if policy.scale == "log" else policy.margin
    too_good = math.log1p(policy.too_good) if policy.scale == "log" else policy.too_good
    measured = f"Final {name} {percent(effect.value)} ({percent(interval[0])} to {percent(interval[1])})"
    allowed = f"{100 * policy.margin:.3g} %" if policy.scale == "log" else f"{policy.margin:g}"
    status: Status = "ok"
    rest = f"not worse by more than the allowed {allowed}."
    if float(ends.min() - base.min()) < -too_good:
        best = abs(shown(float(ends.min() - base.min())))
        by = f"{100 * best:.3g} %" if policy.scale == "log" else f"{best:.3g}"
        status, rest = "regressed", f"{by} better than the best of {len(old)} baseline seeds: too good to be true, "
        rest += "does a label leak into the input?"
    elif change.high < margin:
        if change.high < 0 and change.estimate < -policy.early_rtol:
            status, rest = "improved", "better than the baseline's seeds."
    elif change.low > 0:
        status, rest = "regressed", f"worse than the baseline's seeds and beyond the allowed {allowed} or near it."
    else:
        status = "cannot_tell"
        rest = f"neither surely within the allowed {allowed} nor surely worse: run more seeds, or allow more."
    return Finding(status=status, explanation=f"{measured}: {rest}", effect=effect, interval=interval, p=change.p)


def _differences(run: RunRecord, baseline: ConvergenceBaseline) -> list[str]:
    """What the run was made with that the baseline was not: configuration, packages, flags."""
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
