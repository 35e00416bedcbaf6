"""Same-seed comparison of each run with the baseline's run.

In: runs and the baseline, with or without replicas. Out: for each run the curve of the environment most like its own,
and the allowed difference per step; a finding if a run differs by more: a regression if the program should compute the
same numbers and other processors or releases differ by less. docs/statistics.md derives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nightjar_ci.baselines.baseline import BaselineCurve, ConvergenceBaseline
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import Environment, RunRecord
from nightjar_ci.formats.verdict import Effect
from nightjar_ci.judges.array import Array
from nightjar_ci.judges.convergence.scale import as_relative, on_scale
from nightjar_ci.judges.finding import Finding, listed, percent
from nightjar_ci.judges.student_t import t_quantile

RELEASE = 10.0  # times the limit for rounding; 15 pairs of released jaxlibs stayed below 1 (docs/statistics.md)
LEAST_REPLICAS = 5
# The least limit by the type that a program computes in. Losses are float32: eight units in the last place. In
# bfloat16 another vector width moved the first loss by 7e-7 to 2.8e-6 (docs/statistics.md, "Processors"), while
# replicas on one processor, whose parameters are float32, left it as it was.
LEAST = {"f32": 1e-6, "bf16": 3e-5}
FACTOR = 10.0  # a change of cores, meshes or fusions reorders more sums than the replicas do
TAIL = 1e-3
LEARN = "`nightjar-ci baseline --from NIGHT --add` adds this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The reference of a run.

    Attributes:
        environment: the environment of the values.
        values: on the policy's scale, shape (steps,).
        limits: allowed difference on the policy's scale, shape (steps,); infinite for steps that are not compared.
        processors: number of other processors behind the limits; 0 if the run's own is known, or none is.
    """

    environment: Environment
    values: Array
    limits: Array
    processors: int = 0


def same_jaxlib(run: Environment, baseline: Environment) -> bool:
    """Whether two environments have the same devices and jaxlib.

    A program that ran without jaxlib does not compute with it, so installing it later changes nothing.
    Without recorded packages, its presence is unknown.
    """
    if not same_devices(run, baseline):
        return False
    ran_without = any(environment.packages and "jaxlib" not in environment.packages for environment in (run, baseline))
    return ran_without or run.packages.get("jaxlib") == baseline.packages.get("jaxlib")


def same_devices(run: Environment, baseline: Environment) -> bool:
    return (sorted(run.devices), run.backend) == (sorted(baseline.devices), baseline.backend)


def same_processor(run: Environment, baseline: Environment) -> bool:
    """Whether two environments are known to add up in the same order; False if a record lacks its processor."""
    return run.processor is not None and run.processor == baseline.processor


def has_rounding(reference: BaselineCurve, policy: ConvergencePolicy) -> bool:
    """Whether the limits are measured by replicas or declared, and not the default for early steps."""
    shared = [seed for seed in reference.replicas if seed in reference.seeds]
    return policy.paired_rtol is not None or (len(shared) >= LEAST_REPLICAS and policy.scale == "log")


def find_limits(
    reference: BaselineCurve, policy: ConvergencePolicy, others: Sequence[Array] = (), dtype: str = "f32"
) -> Array:
    """The allowed difference of each step from the baseline's same seed; infinite for steps that are not compared.

    Args:
        policy: `paired_rtol` if set; otherwise the replicas decide, or `early_rtol` before `early_steps`.
        others: differences of other processors, each of shape (steps,), which count like replicas.

    Returns: shape (steps,).
    """
    if policy.paired_rtol is not None:
        return np.full(len(reference.steps), policy.paired_rtol)
    if has_rounding(reference, policy):
        shared = [seed for seed in reference.replicas if seed in reference.seeds]
        replicas = on_scale([reference.replicas[seed] for seed in shared], policy.scale)
        seeds = on_scale([reference.seeds[seed] for seed in shared], policy.scale)
        if replicas is not None and seeds is not None:
            return find_rounding(np.vstack([replicas - seeds, *others]), dtype)
    return np.where(np.array(reference.steps) < policy.early_steps, policy.early_rtol, np.inf)


def find_rounding(shifts: Array, dtype: str = "f32") -> Array:
    """The largest difference per step that rounding explains; it never decreases, as rounding grows with the steps.

    It is the larger of ten times the largest difference of any replica, and the upper prediction limit (0.1 %) for
    one more replica, whose largest difference so far is modelled as log-normal.

    Args:
        shifts: difference of each replica from its own seed on the judge's scale, shape (replicas, steps), with at
            least `LEAST_REPLICAS` replicas.

    Returns: shape (steps,).
    """
    count = len(shifts)
    sizes = np.maximum(np.maximum.accumulate(np.abs(shifts), axis=1), LEAST.get(dtype, LEAST["f32"]) / FACTOR)
    logs = np.log(sizes)
    width = t_quantile(TAIL, count - 1) * math.sqrt(1 + 1 / count)
    predicted = np.exp(logs.mean(axis=0) + width * logs.std(axis=0, ddof=1))
    limits: Array = np.maximum.accumulate(np.maximum(FACTOR * sizes.max(axis=0), predicted))
    return limits


def find_reference(
    name: str, run: RunRecord, baseline: ConvergenceBaseline, curve: BaselineCurve, policy: ConvergencePolicy
) -> Reference:
    """The baseline's curve of the run's seed, in the environment most like the run's.

    Args:
        policy: of the curve; its scale fits the baseline's values.
    """
    environments: list[tuple[Environment, Mapping[int, Sequence[float]]]] = [(baseline.environment, curve.seeds)]
    environments += [(added.environment, added.curves.get(name, {})) for added in baseline.elsewhere]
    here = run.environment

    def likeness(other: Environment) -> tuple[bool, bool, bool]:
        return same_devices(here, other), same_jaxlib(here, other), same_processor(here, other)

    with_seed = [(other, seeds) for other, seeds in environments if run.seed in seeds]
    environment, seeds = max(with_seed, key=lambda entry: likeness(entry[0]))  # the first of equals
    others: list[Array] = []
    processors: set[str | None] = set()
    if same_jaxlib(here, environment) and not same_processor(here, environment):
        alike = [(other, curves) for other, curves in environments if same_jaxlib(here, other)]
        processors = {other.processor for other, _ in alike}
        others = [
            _scaled(values, policy) - _scaled(seeds[seed], policy)
            for other, curves in alike
            for seed, values in curves.items()
            if other is not environment and seed in seeds
        ]
    dtype = str(baseline.config.get("compute.dtype", "f32"))
    return Reference(
        environment=environment,
        values=_scaled(seeds[run.seed], policy),
        limits=find_limits(curve, policy, others, dtype),
        processors=len(processors) if others else 0,
    )


def _scaled(values: Sequence[float], policy: ConvergencePolicy) -> Array:
    scaled = on_scale([values], policy.scale)
    assert scaled is not None, "seeds were checked by the judge, curves from elsewhere when they were added"
    return np.asarray(scaled[0])


def describe_processors(references: Sequence[Reference]) -> str:
    """A sentence for runs on a processor that the baseline does not know; empty if it knows all."""
    count = max((reference.processors for reference in references), default=0)
    if not count:
        return ""
    return f" The baseline does not know this processor, so its limits are those seen on {count} others; {LEARN}."


def compare_same_seed(
    name: str,
    runs: Sequence[RunRecord],
    shifts: Array,
    references: Sequence[Reference],
    policy: ConvergencePolicy,
    curve: BaselineCurve,
) -> Iterator[Finding]:
    """Compares with the same seed: a departure means that the program computes other numbers."""
    limits = np.array([reference.limits for reference in references]).reshape(shifts.shape)
    over = np.abs(shifts) > limits
    departed = [index for index in range(len(runs)) if over[index].any()]
    if not departed:
        return
    earliest = min(departed, key=lambda index: int(over[index].argmax()))
    first = int(over[earliest].argmax())
    compared = np.where(np.isfinite(limits[earliest]), np.abs(shifts[earliest]), 0.0)
    largest = int(compared.argmax())
    size = float(shifts[earliest, largest])
    seeds = listed([runs[index].seed for index in departed], "seed")
    change = as_relative(size, policy.scale)
    text = f"The {name} leaves the baseline's same-seed curve at step {curve.steps[first]} ({seeds}, "
    text += f"up to {percent(change)} at step {curve.steps[largest]}; rounding explains {limits[earliest, first]:.1g})"
    effect = Effect(value=change, unit=f"{name} of the same seed")
    here, reference = runs[earliest].environment, references[earliest]
    before = reference.environment
    both = here.packages.keys() & before.packages.keys()
    jaxlib = "jaxlib, " if "jaxlib" in both else ""
    if same_jaxlib(here, before) and same_processor(here, before):
        text += f", though {jaxlib}processor, devices and data are the same: the program computes other numbers."
        yield Finding(status="regressed", explanation=text, effect=effect)
        return
    if not same_devices(here, before):
        between = f"{before.facts_key} to {here.facts_key}"
        yield Finding(status="ok", explanation=f"{text}, which is possible from {between}; the envelope decides.")
        return
    if same_jaxlib(here, before):
        what, seen = f"on another processor ({describe_change(before, here)})", "processors"
    else:
        what, seen = f"from {before.facts_key} to {here.facts_key}", "released versions of jaxlib"
    if not has_rounding(curve, policy) and not same_jaxlib(here, before):
        text += f" {what}. The baseline has no replicas that say what rounding does to this program"
        text += ": give its policy `replica_args` and remake the baseline."
        yield Finding(status="cannot_tell", explanation=text, effect=effect)
    elif policy.paired_rtol is not None or reference.processors or (np.abs(shifts) > RELEASE * limits).any():
        text += f" {what}: {seen} differ by less, so the program computes other"
        yield Finding(status="regressed", explanation=f"{text} numbers.", effect=effect)
    else:
        text += f" {what}: more than {seen} were seen to differ, and less than"
        yield Finding(status="cannot_tell", explanation=f"{text} {RELEASE:g} times the limit.", effect=effect)


def describe_change(there: Environment, here: Environment) -> str:
    """Both processors in words, as short as possible while distinct."""
    names = [f"{environment.cpu.architecture or environment.cpu.model}" for environment in (there, here)]
    if names[0] == names[1] or here.backend != "cpu":
        names = [environment.processor or "not recorded" for environment in (there, here)]
    return " -> ".join(names)
