"""Same-seed comparison of each run with the baseline's run.

In: the differences of the curves per step, and the baseline, with or without replicas. Out: the allowed difference per
step, and a finding if a run differs by more: a regression where the program should compute the same numbers, and where
another jaxlib differs by more than released versions do. docs/statistics.md, "The same seed", derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nightjar_ci.baselines.baseline import BaselineCurve, ConvergenceBaseline
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import Environment, RunRecord
from nightjar_ci.formats.verdict import Effect
from nightjar_ci.judges.convergence.envelope import Array
from nightjar_ci.judges.convergence.rounding import LEAST_REPLICAS, find_rounding
from nightjar_ci.judges.convergence.scale import as_relative, on_scale
from nightjar_ci.judges.finding import Finding, listed, percent

RELEASE = 10.0  # times the limit for rounding; 15 pairs of released jaxlibs stayed below 1 (docs/statistics.md)


def same_numerics(run: Environment, baseline: Environment) -> bool:
    """Whether two environments should compute the same numbers: same jaxlib, backend, device kinds and count.

    A program that ran where there was no jaxlib does not compute with it, so that one installed since changes nothing.
    Where no packages were recorded, nobody knows whether there was one.
    """
    if not same_devices(run, baseline):
        return False
    ran_without = any(environment.packages and "jaxlib" not in environment.packages for environment in (run, baseline))
    return ran_without or run.packages.get("jaxlib") == baseline.packages.get("jaxlib")


def same_devices(run: Environment, baseline: Environment) -> bool:
    """Whether two environments differ in software alone."""
    return (sorted(run.devices), run.backend) == (sorted(baseline.devices), baseline.backend)


def has_rounding(reference: BaselineCurve, policy: ConvergencePolicy) -> bool:
    """Whether the limits are measured by replicas or declared, and not the default for early steps."""
    shared = [seed for seed in reference.replicas if seed in reference.seeds]
    return policy.paired_rtol is not None or (len(shared) >= LEAST_REPLICAS and policy.scale == "log")


def find_limits(reference: BaselineCurve, policy: ConvergencePolicy) -> Array:
    """The allowed difference of each step from the baseline's same seed; infinite where steps are not compared.

    Args:
        reference: the baseline's curve, with or without replicas.
        policy: `paired_rtol` if set; otherwise the replicas decide, or `early_rtol` before `early_steps`.

    Returns: shape (steps,).
    """
    if policy.paired_rtol is not None:
        return np.full(len(reference.steps), policy.paired_rtol)
    shared = [seed for seed in reference.replicas if seed in reference.seeds]
    if len(shared) >= LEAST_REPLICAS and policy.scale == "log":
        replicas = on_scale([reference.replicas[seed] for seed in shared], policy.scale)
        seeds = on_scale([reference.seeds[seed] for seed in shared], policy.scale)
        if replicas is not None and seeds is not None:
            return find_rounding(replicas - seeds)
    return np.where(np.array(reference.steps) < policy.early_steps, policy.early_rtol, np.inf)


def compare_same_seed(
    name: str,
    runs: Sequence[RunRecord],
    shifts: Array,
    limits: Array,
    baseline: ConvergenceBaseline,
    reference: BaselineCurve,
    policy: ConvergencePolicy,
) -> Iterator[Finding]:
    """Compares with the same seed: a departure means that the program computes other numbers."""
    over = np.abs(shifts) > limits
    departed = [index for index in range(len(runs)) if over[index].any()]
    if not departed:
        return
    earliest = min(departed, key=lambda index: int(over[index].argmax()))
    first = int(over[earliest].argmax())
    compared = np.where(np.isfinite(limits), np.abs(shifts[earliest]), 0.0)
    largest = int(compared.argmax())
    size = float(shifts[earliest, largest])
    seeds = listed([runs[index].seed for index in departed], "seed")
    change = as_relative(size, policy.scale)
    text = f"The {name} leaves the baseline's same-seed curve at step {reference.steps[first]} ({seeds}, "
    text += f"up to {percent(change)} at step {reference.steps[largest]}; rounding explains {limits[first]:.1g})"
    effect = Effect(value=change, unit=f"{name} of the same seed")
    if same_numerics(runs[earliest].environment, baseline.environment):
        both = runs[earliest].environment.packages.keys() & baseline.environment.packages.keys()
        jaxlib = "jaxlib, " if "jaxlib" in both else ""
        text += f", though {jaxlib}devices and data are the same: the program computes other numbers."
        yield Finding(status="regressed", explanation=text, effect=effect)
        return
    environments = f"{baseline.environment.facts_key} to {runs[earliest].environment.facts_key}"
    if not same_devices(runs[earliest].environment, baseline.environment):
        yield Finding(status="ok", explanation=f"{text}, which is possible from {environments}; the envelope decides.")
    elif not has_rounding(reference, policy):
        text += f" from {environments}. The baseline has no replicas that say what rounding does to this program"
        text += ": give its policy `replica_args` and remake the baseline."
        yield Finding(status="cannot_tell", explanation=text, effect=effect)
    elif policy.paired_rtol is not None or (np.abs(shifts) > RELEASE * limits).any():
        text += f" from {environments}: released versions of jaxlib differ by less, so the program computes other"
        yield Finding(status="regressed", explanation=f"{text} numbers.", effect=effect)
    else:
        text += f" from {environments}: more than released versions of jaxlib were seen to differ, and less than"
        yield Finding(status="cannot_tell", explanation=f"{text} {RELEASE:g} times the limit.", effect=effect)
