"""The plan of paired re-runs for the suspicious series of a night.

In: the series of a night, policies, its jobs, the environments of earlier nights. Out: the suspicions, each with the
environment to compare with or the reason why there is none, and a comparison for each cell that can be run again. An
earlier environment is made again from the package versions that a result of that night recorded (`uv:...`), or from its
image. This module runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nightjar_ci.formats.job import Job
from nightjar_ci.formats.policy import HistoryPolicy, Policies
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.history.history import find_doubt
from nightjar_ci.judges.history.open_regression import find_standing
from nightjar_ci.judges.history.segment import current_segment
from nightjar_ci.night.paired_runs import Comparison

EnvironmentOf = Callable[[str, str], Environment | None]  # of a cell in a night


class Ran(Protocol):
    """What a job of the night is asked for: a `Job` before it has run, an `Outcome` after."""

    @property
    def cell(self) -> str:
        """Id of its cell."""

    @property
    def kind(self) -> str:
        """Whether it trains or profiles."""

    @property
    def environment(self) -> str:
        """As the matrix spells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A series that is worth pairs of runs.

    Attributes:
        series: its history.
        numbers: the policy of its history.
        p: how surprising it is.
        good_night: the night to compare tonight with.
        reference: the environment of that night, or None where it cannot be made again.
        why_not: the reason.
    """

    series: Series
    numbers: HistoryPolicy
    p: float
    good_night: str
    reference: str | None
    why_not: str

    @property
    def cell(self) -> str:
        """The cell that the series belongs to."""
        return self.series.name.partition("/")[0]


def find_suspicions(
    series: Sequence[Series],
    policies: Policies,
    jobs: Sequence[Ran],
    environment_of: EnvironmentOf,
    *,
    accepted: Mapping[str, Collection[str]],
    earlier: Mapping[str, Verdict],
) -> list[Suspicion]:
    """Tonight's suspicions, the most surprising first.

    Args:
        series: tonight's measures with their history.
        policies: which histories are judged, and how a cell is run for a comparison.
        jobs: tonight's jobs.
        environment_of: the environment that a cell had in a night, or None.
        accepted: name of a series to the nights from which on its new level is wanted.
        earlier: the verdict on each history of the latest night before that was judged.
    """
    environments: dict[str, str] = {}
    for job in jobs:
        if job.kind == "train":
            environments.setdefault(job.cell, job.environment)
    found = []
    for one in series:
        cell, _, measure = one.name.partition("/")
        numbers, how = policies.for_history(cell, measure), policies.for_performance(cell)
        if numbers is None or cell not in environments:
            continue
        doubt = find_question(one, numbers, accepted.get(one.name, ()), earlier.get(one.name))
        if doubt is None:
            continue
        p, good_night = doubt
        if how is None or how.sample != measure:
            reference, why_not = None, "no performance policy compares it"
        else:
            then, tonight = environment_of(cell, good_night), environment_of(cell, one.nights[-1])
            reference, why_not = find_reference(environments[cell], then, tonight)
        found.append(
            Suspicion(series=one, numbers=numbers, p=p, good_night=good_night, reference=reference, why_not=why_not)
        )
    return sorted(found, key=lambda suspicion: suspicion.p)


def plan_confirmations(suspicions: Sequence[Suspicion], policies: Policies, jobs: Sequence[Job]) -> list[Comparison]:
    """The comparisons that settle suspicions: one for each cell, no more than the policy of the night says."""
    firsts: dict[str, Job] = {}
    for job in jobs:
        if job.kind == "train":
            firsts.setdefault(job.cell, job)
    planned: dict[str, Comparison] = {}
    for one in suspicions:
        how = policies.for_performance(one.cell)
        if one.reference is not None and how is not None and one.cell in firsts and one.cell not in planned:
            planned[one.cell] = Comparison(
                job=firsts[one.cell], reference=one.reference, how=how, numbers=one.numbers, place="confirm"
            )
    return list(planned.values())[: policies.night.most_confirmations]


def find_reference(environment: str, then: Environment | None, tonight: Environment | None) -> tuple[str | None, str]:
    """How an earlier night's environment is made again.

    Args:
        environment: of tonight's job, as the matrix spells it.
        then: what the earlier night recorded.
        tonight: what tonight recorded.

    Returns: the environment, or None and the reason.

    >>> find_reference("current", None, None)
    (None, 'the earlier night left no result')
    """
    if then is None or tonight is None:
        return None, "the earlier night left no result"
    if environment.startswith("image:"):
        if then.image is None or then.image == tonight.image:
            return None, "the image is the same"
        return f"image:{then.image}", ""
    changed = {
        name: version for name, version in then.packages.items() if tonight.packages.get(name, version) != version
    }
    if not changed:
        return None, "no package that its results record has another version now, so the code or the machine changed"
    kept = [] if environment == "current" else _requirements_without(environment.partition(":")[2], changed)
    return "uv:" + ",".join([*kept, *(f"{name}=={version}" for name, version in sorted(changed.items()))]), ""


def _requirements_without(text: str, changed: Mapping[str, str]) -> list[str]:
    from packaging.utils import canonicalize_name

    from nightjar_ci.environments.uv import parse_requirement, split_requirements

    return [part for part in split_requirements(text) if canonicalize_name(parse_requirement(part).name) not in changed]


def find_question(
    series: Series, policy: HistoryPolicy, accepted: Collection[str], earlier: Verdict | None
) -> tuple[float, str] | None:
    """What pairs would settle tonight.

    Args:
        series: up to tonight.
        policy: of its history.
        accepted: nights from which on a new level is wanted.
        earlier: the verdict on this history of the latest night before that was judged.

    Returns: how surprising tonight is, and the night to compare it with; None where pairs have nothing to settle.
    """
    segment = current_segment(series, policy.scale, accepted)
    if not segment.nights or segment.nights[-1] != series.nights[-1]:
        return None
    standing = find_standing(segment, earlier, policy.window)
    if standing is not None and not standing.gone:  # found before: pairs can only say that it has gone
        return (policy.trigger, standing.good_night) if standing.perhaps_gone else None
    doubt = find_doubt(segment, policy)
    return (doubt.p, doubt.good_night) if doubt is not None and doubt.suspicious else None
