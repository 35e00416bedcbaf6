"""The plan of paired re-runs for the series of a night that need them.

In: the screened series of a night, policies, its jobs, the environments of earlier nights. Out: requests, each with the
environment to compare with or the reason why there is none, and a comparison for each cell that can be run again. An
earlier environment is made again from the package versions that a result of that night recorded (`uv:...`), or from its
image; if the commit changed, in a worktree of that night's commit (`commit:...`). This module runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nightjar_ci.environments.project import is_project
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import PerformancePolicy, Policies
from nightjar_ci.formats.run_record import Environment, Git
from nightjar_ci.formats.series_name import parse_series_name
from nightjar_ci.judges.history.screening import ScreenedSeries
from nightjar_ci.night.paired_runs import Comparison

EnvironmentOf = Callable[[str, str], Environment | None]  # cell, night
IsSample = Callable[[str, str], bool]  # cell, measure
HasCommit = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunRequest:
    """A series that is worth pairs of runs.

    Attributes:
        reference: the environment to compare tonight with, or None if it cannot be made again.
        how: the sample to compare, and the arguments that make a run short.
    """

    screened: ScreenedSeries
    reference: str | None
    why_not: str
    how: PerformancePolicy

    @property
    def name(self) -> str:
        return self.screened.series.name

    @property
    def cell(self) -> str:
        return parse_series_name(self.name).cell


def find_reruns(
    screened: Iterable[ScreenedSeries],
    policies: Policies,
    jobs: Sequence[Job | Outcome],
    environment_of: EnvironmentOf,
    has_commit: HasCommit = lambda sha: False,
    is_sample: IsSample = lambda cell, measure: True,
) -> list[RerunRequest]:
    """The series that are worth pairs of runs tonight, the most surprising first; pairs compare samples, no curves."""
    environments: dict[str, str] = {}
    for job in jobs:
        if job.kind == "train":
            environments.setdefault(job.cell, job.environment)
    requests = []
    for series in screened:
        cell, measure = series.series.cell, series.series.measure
        if cell not in environments or not series.needs_rerun:
            continue
        reference, why_not = None, "pairs compare samples, and this is the last value of a curve"
        if is_sample(cell, measure):
            nights = (series.good_night, series.series.nights[-1])
            then, tonight = (environment_of(cell, night) for night in nights)
            reference, why_not = find_reference(environments[cell], then, tonight, has_commit)
        how = policies.for_pairs(cell, measure)
        requests.append(RerunRequest(screened=series, reference=reference, why_not=why_not, how=how))
    return sorted(requests, key=lambda request: request.screened.rerun_p)


def plan_confirmations(requests: Sequence[RerunRequest], policies: Policies, jobs: Sequence[Job]) -> list[Comparison]:
    """Tonight's comparisons: one per cell, up to the limit in the night's policy."""
    firsts: dict[str, Job] = {}
    for job in jobs:
        if job.kind == "train":
            firsts.setdefault(job.cell, job)
    oldest: dict[str, RerunRequest] = {}  # of each cell: pairs against its good night say something of all measures
    for request in requests:
        if request.reference is not None and request.cell in firsts:
            chosen = oldest.setdefault(request.cell, request)
            if request.screened.good_night < chosen.screened.good_night:
                oldest[request.cell] = request
    planned = [
        Comparison(
            job=firsts[cell],
            reference=request.reference or "",
            how=request.how,
            numbers=request.screened.policy,
            subfolder="confirm",
        )
        for cell, request in oldest.items()
    ]
    return planned[: policies.night.most_confirmations]


def find_reference(
    environment: str,
    then: Environment | None,
    tonight: Environment | None,
    has_commit: HasCommit = lambda sha: False,
) -> tuple[str | None, str]:
    """How to remake an earlier night's environment, in its commit if that changed.

    Args:
        then: the earlier night's record.

    Returns: the environment, or None and the reason.

    >>> find_reference("current", None, None)
    (None, 'the earlier night left no result')
    """
    if then is None or tonight is None:
        return None, "the earlier night left no result"
    pythons = [".".join(side.python.split(".")[:2]) for side in (then, tonight)]  # asv records no patch release
    if pythons[0] != pythons[1] and not environment.startswith("image:"):
        return None, f"Python {pythons[0]} became {pythons[1]}, and pairs run on tonight's"
    packages, same = _find_packages(environment, then, tonight)
    commit, no_commit = _find_commit(then.git, tonight.git, has_commit)
    if commit is not None:
        return f"commit:{commit}:{packages or environment}", ""
    if packages is None:
        return None, f"{same}, and {no_commit}"
    return packages, ""


def _find_commit(then: Git | None, tonight: Git | None, has_commit: HasCommit) -> tuple[str | None, str]:
    """The commit of an earlier night, if it differs and can be checked out; else None and the reason."""
    if then is None or tonight is None:
        return None, "no commit is recorded, so the code or the machine changed"
    if then.sha == tonight.sha:
        return None, "the commit is the same, so the machine changed"
    if then.dirty:
        return None, f"that night ran {then.sha[:12]} with changes that no commit holds"
    if not has_commit(then.sha):
        return None, f"git does not have its commit {then.sha[:12]} here (a shallow clone?)"
    return then.sha, ""


def _find_packages(environment: str, then: Environment, tonight: Environment) -> tuple[str | None, str]:
    """The environment of an earlier night from packages or an image; else None and the reason."""
    if environment.startswith("image:"):
        if then.image is None or then.image == tonight.image:
            return None, "the image is the same"
        return f"image:{then.image}", ""
    changed = {
        name: version for name, version in then.packages.items() if tonight.packages.get(name, version) != version
    }
    if not changed:
        return None, "no package that its results record has another version now"
    earlier = [f"{name}=={version}" for name, version in sorted(changed.items())]
    if is_project(environment):
        return ",".join([environment, *earlier]), ""
    kept: list[str] = []
    if environment != "current":
        kept = _requirements_without(environment.partition(":")[2], changed)
    return "uv:" + ",".join([*kept, *earlier]), ""


def _requirements_without(text: str, changed: Mapping[str, str]) -> list[str]:
    """The parts of a `uv:` environment, including its lock, without the requirements of changed packages."""
    from packaging.utils import canonicalize_name

    from nightjar_ci.environments.lock import parse_lock
    from nightjar_ci.environments.uv import parse_requirement, split_requirements

    parts = split_requirements(text)
    lock: list[str] = []
    if parse_lock(text) is not None:
        lock, parts = parts[:1], parts[1:]
    return lock + [part for part in parts if canonicalize_name(parse_requirement(part).name) not in changed]
