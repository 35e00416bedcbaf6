"""Two commits of a project, compared by a command that runs on both in turn until their difference is decided.

In: two revisions, a command, and the number that it is judged by: none for an exit code, its time, or a metric that it
prints. Out: a `Comparison`. The search that bisects ladders decides; here the ladder has two rungs.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from nightjar_ci.bisect.ladders.commits import find_commit, find_merge_base, open_repository, read_commit
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.options.question_inputs import digest_files, digest_variables
from nightjar_ci.bisect.probing.classify import Classification, Classifier, Metric, check_pattern
from nightjar_ci.bisect.probing.rung_setup import RungSetup
from nightjar_ci.bisect.probing.runner import Worker
from nightjar_ci.bisect.result.report import show_result
from nightjar_ci.bisect.search.conclude import ALIKE
from nightjar_ci.bisect.search.neighbours import median_interval
from nightjar_ci.bisect.search.search import Search
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
CONFIDENCE = 0.99
RULED_OUT = 0.5  # failure rate after the change that passing runs rule out: seven of them
_ANSWERS: dict[bool, Literal["good", "bad"]] = {True: "good", False: "bad"}  # of a run, by whether it completed
_MOST_RUNS = 50  # or pairs: fewer than those after which a bisection gives up the check of two neighbours
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a command's results differ between two commits.

    Attributes:
        text: the answer, in a sentence.
        change: of the metric, relative to the first commit: low, median and high; of exit codes None.
        values: of the runs of each commit; 0 and 1 for passed and failed runs.
    """

    exit_code: ExitCode
    text: str
    commits: tuple[str, str]
    change: tuple[float, float, float] | None
    values: tuple[tuple[float, ...], tuple[float, ...]]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Run:
    """Judges a run by its exit code, or by its time: whatever fails after the change and not before is its work."""

    better: Better | None = None

    def read(self, outcome: Outcome, folder: Path, good_end: RunRecord | None) -> Classification:
        if outcome.state == "not_started":
            return Classification(answer="cannot_tell", why=outcome.message)
        if self.better is None:
            return Classification(answer=_ANSWERS[outcome.completed])
        if not outcome.completed:
            return Classification(answer="cannot_tell", why=f"exit code {outcome.exit_code}: its time is not trusted")
        return Classification(value=outcome.duration_s)


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
    passed = tuple(project.variables)
    question = Question(
        ladder={"kind": "commits", "old": old, "new": new},
        command=tuple(command),
        classifier={"metric": metric or ""},
        files=digest_files(command, Path.cwd()),
        variables=digest_variables(os.environ, passed),
        environment=_find_environment(project),
        executor="local",
        timeout_s=_TIMEOUT_S,
        pass_env=passed,
    )
    worker = Worker(
        folder=folder,
        stage=0,
        ladder=ladder,
        search=Search(2, find_settings(None if metric is None else better)),
        classifier=_find_classifier(metric, better),
        setup=RungSetup(folder, question, settings),
        find="regression",
        on_line=on_line,
        on_probe=lambda probe: on_line(f"{probe.name}: {show_result(probe)}"),
        max_minutes=minutes,
    )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        conclusion = worker.run()
    finally:
        worker.setup.clear([ladder])
    exit_code, change, text = describe(conclusion, worker.probes, metric)
    return Comparison(
        exit_code=exit_code,
        text=text,
        commits=(ladder.rungs[0].name, ladder.rungs[1].name),
        change=change,
        values=find_values(worker.probes),
        folder=folder,
    )


def _find_environment(project: Project) -> str:
    """The project's, which has the project of each commit; scripts that no one installs run in the current one."""
    if not is_package(Path.cwd()) and (not project.uses_jax or find_installed_jax(Path.cwd())):
        return "current"
    return project.environment


def render_comparison(comparison: Comparison, *, as_json: bool) -> str:
    if as_json:
        document = asdict(comparison) | {"folder": str(comparison.folder)}
        return json.dumps(document, indent=1)
    old, new = comparison.commits
    return "\n".join((f"before  {old}", f"after   {new}", comparison.text, f"Logs: {comparison.folder}"))


def find_settings(better: Better | None) -> SearchSettings:
    if better is None:
        return SearchSettings(confidence=CONFIDENCE, failure_rate=RULED_OUT, max_tests=_MOST_RUNS)
    return SearchSettings(confidence=CONFIDENCE, metric=better, reference="first", max_tests=_MOST_RUNS)


def describe(
    conclusion: Conclusion, probes: Sequence[Probe], metric: str | None
) -> tuple[ExitCode, tuple[float, float, float] | None, str]:
    """The exit code, the change of the metric if it is known, and the answer in words."""
    old, new = find_values(probes)
    if conclusion.kind == "unbuildable" or not old or not new:
        why = next((probe.why for probe in reversed(probes) if probe.why), conclusion.message)
        return ExitCode.CANNOT_TELL, None, f"Cannot tell: {why}"
    kind = conclusion.kind
    if kind == "too_loud" and conclusion.culprits is not None:  # they differ; here it is not asked which rung of many
        kind = "culprit"
    exit_code, verdict = _VERDICTS.get((kind, metric is not None), (ExitCode.CANNOT_TELL, "Cannot tell"))
    if metric is None:
        if kind == "good_end_is_bad" and not any(new):
            exit_code, verdict = ExitCode.OK, "Mended"
        text = f"{_count(old)} before the change, {_count(new)} after it"
        return exit_code, None, f"{verdict}: {text}.{_RULED_OUT * (kind == 'bad_end_is_good')}"
    before, after = np.array(old), np.array(new)
    relative = bool((before > 0).all() and (after > 0).all())
    changes, form = after - before, "+.4g"
    if relative:
        changes, form = after / before - 1, "+.1%"
    low, high = median_interval(changes)
    change = (low, float(np.median(changes)), high)
    words, interval = [format(value, form) for value in change], ""
    if math.isfinite(low):
        interval = f" ({words[0]} to {words[2]}, 95 %)"
    return exit_code, change, f"{verdict}: {metric} {words[1]}{interval} in {len(changes)} pairs."


_RULED_OUT = f" That it fails in {RULED_OUT:.0%} of runs or more is ruled out."
_VERDICTS = {  # by the search's conclusion, and whether a metric is judged
    ("culprit", False): (ExitCode.NO, "Broken"),
    ("culprit", True): (ExitCode.NO, "Worse"),
    ("good_end_is_bad", False): (ExitCode.CANNOT_TELL, "Fails already before"),
    ("good_end_is_bad", True): (ExitCode.OK, "Better"),
    ("bad_end_is_good", False): (ExitCode.OK, "Passes"),
    ("no_change", True): (ExitCode.OK, f"No change by {ALIKE:.0%} or more"),
}


def find_values(probes: Sequence[Probe]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The values before and after the change, pair by pair; of exit codes 1 for a run that failed."""
    old: list[float] = []
    new: list[float] = []
    for probe in probes:
        if probe.value is not None and probe.beside is not None:
            old.append(probe.beside)
            new.append(probe.value)
        elif probe.outcome in ("good", "bad"):
            (new if probe.rung else old).append(float(probe.outcome == "bad"))
    return tuple(old), tuple(new)


def _count(runs: Sequence[float]) -> str:
    return f"{sum(runs):.0f} of {len(runs)} runs fail"


def _find_classifier(metric: str | None, better: Better) -> Classifier:
    if metric is None:
        return _Run()
    if metric == TIME:
        return _Run("lower")
    if "(" not in metric:
        return Metric(better=better, name=metric)
    check_pattern(metric, "--metric", groups=1)
    return Metric(better=better, pattern=metric)
