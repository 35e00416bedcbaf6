"""Two commits of a project, compared by a command that runs on both in turn until their difference is decided.

In: two revisions, a command, and the number that it is judged by: none for an exit code, its time, or a metric that it
prints. Out: a JSON document with the answer. The search that bisects ladders decides; here the ladder has two rungs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nightjar_ci.bisect.ladders.commits import find_commit, find_merge_base, open_repository, read_commit
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.probing.classify import Classification, Classifier, parse_metric
from nightjar_ci.bisect.probing.rung_setup import RungSetup
from nightjar_ci.bisect.probing.runner import Worker
from nightjar_ci.bisect.result.report import show_result
from nightjar_ci.bisect.search.conclude import ALIKE
from nightjar_ci.bisect.search.neighbours import median_interval
from nightjar_ci.bisect.search.noise import Array
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, SearchSettings
from nightjar_ci.bisect.state import Probe, Question
from nightjar_ci.environments.project import is_package
from nightjar_ci.errors import ExitCode, InputError
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Better, RunRecord
from nightjar_ci.projects.sides import find_installed_jax

if TYPE_CHECKING:
    from nightjar_ci.projects.look import Project
    from nightjar_ci.settings import Settings

TIME = "time"
RULED_OUT = 0.5  # failure rate after the change that passing runs rule out: seven of them
_MOST_RUNS = 50  # or pairs: fewer than those after which a bisection gives up the check of two neighbours
_TIMEOUT_S = 3600.0
_VERDICTS = {  # by the search's conclusion, and whether a metric is judged; any other cannot tell
    ("culprit", False): (ExitCode.NO, "Broken"),
    ("culprit", True): (ExitCode.NO, "Worse"),
    ("good_end_is_bad", False): (ExitCode.CANNOT_TELL, "Fails already before"),
    ("good_end_is_bad", True): (ExitCode.OK, "Better"),
    ("bad_end_is_good", False): (ExitCode.OK, f"Passes (failing in {RULED_OUT:.0%} of runs or more is ruled out)"),
    ("no_change", True): (ExitCode.OK, f"No change by {ALIKE:.0%} or more"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer, and the values of the runs of each commit: of exit codes 1 for one that failed."""

    exit_code: ExitCode
    text: str
    values: tuple[Sequence[float], Sequence[float]]
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Run:
    """Judges a run by its exit code, or by its time: whatever fails after the change and not before is its work."""

    better: Better | None = None

    def read(self, outcome: Outcome, folder: Path, good_end: RunRecord | None) -> Classification:
        if outcome.state == "not_started":
            return Classification(answer="cannot_tell", why=outcome.message)
        if self.better is not None and outcome.completed:
            return Classification(value=outcome.duration_s)
        if self.better is not None:
            return Classification(answer="cannot_tell", why=f"exit code {outcome.exit_code}: its time is not trusted")
        return Classification(answer=("bad", "good")[outcome.completed])


def find_commits(text: str, folder: Path) -> tuple[Path, str, str]:
    """The repository and the two commits of `BASE..HEAD`, or `BASE...HEAD`, which begins where HEAD left BASE."""
    base, dots, head = text.partition("..")
    if not dots or not base:
        raise InputError(f"--commits: {text!r} is not BASE..HEAD.", "such as main..HEAD, or main...HEAD")
    repository = open_repository(str(folder), folder)
    first, last = find_commit(repository, base), find_commit(repository, head.removeprefix(".") or "HEAD")
    if head.startswith("."):
        first = find_merge_base(repository, first, last)
    if first == last:
        raise InputError(f"--commits: {text} names one commit, {first[:12]}.")
    return repository, first, last


def compare_commits(
    commits: str,
    command: Sequence[str],
    project: Project,
    settings: Settings,
    folder: Path,
    *,
    metric: str | None,
    better: Better,
    minutes: float | None,
    on_line: Callable[[str], None],
) -> Comparison:
    """Runs a command on two commits in turn until it is decided whether they differ.

    Args:
        commits: of the repository of the working directory.
        metric: `time`, or a metric as `bisect --metric` reads it; None for the exit code.
        folder: for the logs of the runs and, meanwhile, the worktrees.
    """
    repository, old, new = find_commits(commits, Path.cwd())
    if repository.resolve() != Path.cwd().resolve():
        raise InputError("a command of --commits runs in the top folder of the repository.", f"cd {repository}")
    ladder = Ladder(rungs=(read_commit(repository, old), read_commit(repository, new)), repository=str(repository))
    environment = project.environment
    if not is_package(Path.cwd()) and (not project.uses_jax or find_installed_jax(Path.cwd())):
        environment = "current"  # of scripts that no one installs
    question = Question(
        ladder={"kind": "commits", "old": old, "new": new},
        command=tuple(command),
        classifier={},
        files={},
        environment=environment,
        executor="local",
        timeout_s=_TIMEOUT_S,
        pass_env=tuple(project.variables),
    )
    os.environ.update(project.variables)
    classifier = _find_classifier(metric, better)
    worker = Worker(
        setup=RungSetup(folder, question, settings, ladder, on_line),
        results=Results(2, find_settings(classifier.better)),
        classifier=classifier,
        on_probe=lambda probe: on_line(f"{probe.name}: {show_result(probe)}"),
        max_minutes=minutes,
    )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        conclusion = worker.run()
    finally:
        worker.setup.clear()
    names = tuple(rung.name for rung in ladder.rungs)
    return replace(describe(conclusion, worker.probes, metric), commits=names)


def find_settings(better: Better | None) -> SearchSettings:
    if better is None:
        return SearchSettings(failure_rate=RULED_OUT, max_tests=_MOST_RUNS)
    return SearchSettings(metric=better, reference="first", max_tests=_MOST_RUNS)


def describe(conclusion: Conclusion, probes: Sequence[Probe], metric: str | None) -> Comparison:
    values = _find_values(probes)
    exit_code, kind = ExitCode.CANNOT_TELL, conclusion.kind
    if kind == "unbuildable" or not all(values):
        why = next((probe.why for probe in reversed(probes) if probe.why), conclusion.message)
        return Comparison(exit_code=exit_code, text=f"Cannot tell: {why}", values=values)
    exit_code, verdict = _VERDICTS.get((kind, metric is not None), (exit_code, "Cannot tell"))
    if metric is not None:
        text = f"{verdict}: {metric} {_describe_change(*map(np.array, values))}."
        return Comparison(exit_code=exit_code, text=text, values=values)
    if kind == "good_end_is_bad" and not any(values[1]):
        exit_code, verdict = ExitCode.OK, "Mended"
    before, after = (f"{sum(runs):.0f} of {len(runs)} runs fail" for runs in values)
    text = f"{verdict}: {before} before the change, {after} after it."
    return Comparison(exit_code=exit_code, text=text, values=values)


def _describe_change(before: Array, after: Array) -> str:
    changes, form = after - before, "+.4g"
    if min(before.min(), after.min()) > 0:
        changes, form = after / before - 1, "+.1%"
    low, high = median_interval(changes)
    text = f"{np.median(changes):{form}}"
    if math.isfinite(low):
        text += f" ({low:{form}} to {high:{form}}, 95 %)"
    return f"{text} in {len(changes)} pairs"


def _find_values(probes: Sequence[Probe]) -> tuple[list[float], list[float]]:
    values: tuple[list[float], list[float]] = ([], [])
    for probe in probes:
        if probe.value is not None and probe.beside is not None:
            values[0].append(probe.beside)
            values[1].append(probe.value)
        elif probe.outcome in ("good", "bad"):
            values[probe.rung].append(float(probe.outcome == "bad"))
    return values


def _find_classifier(metric: str | None, better: Better) -> Classifier:
    if metric is None:
        return _Run()
    if metric == TIME:
        return _Run("lower")
    return parse_metric(metric, better)
