"""The options of the bisection that a red verdict asks for.

In: `verdicts.json` of a night and a series that regressed. Out: options as a person would give them. The series names
the test, and two nights name the ends. The bad end is the red night. The good end is the latest earlier night in the
same folder of nights whose verdict on the series was good (`ok` or `improved`), with two special cases:

- If the verdict names a good night, as one on a history does, that night counts as good and no later one is taken.
- The gate compares compile facts that have no baseline with the latest earlier night. So if no earlier night is good,
  the latest one whose verdict on the facts was *cannot tell* is taken.

A test of JAX's users that no night saw pass, as in the first night of a project, is tried on the releases of JAX before
tonight's, each with the other packages of its day, until one passes.

A red test is run alone: it takes the place of the files and folders that its pytest command names. If the job ran in
a lock or in an environment of a project, all packages are known, and unchanged ones keep their versions.

If the job ran in an image, the ladder is the nightly images between the two nights. Otherwise it is the packages whose
versions differ between the two results, Python among them, or, if none differ, the commits of the working folder.
Packages belong to the job's Python, which may differ from the active one.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import PYTHON
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.probing.classify_by_gate import JUDGES
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.lock import is_locked
from nightjar_ci.environments.project import is_project
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from nightjar_ci.formats.run_record import Environment, RunRecord
from nightjar_ci.formats.suite import SUITE, WHOLE_COMMAND, Case
from nightjar_ci.formats.verdict import Verdict, read_verdicts, sort_worst_first
from nightjar_ci.suites.command import find_pytest, select_test

_GONE = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "TypeError")
_GOOD = ("ok", "improved")
_DATED_IMAGE = re.compile(r"image:(?P<image>.+:.+?)-(?P<date>\d{4}-\d\d-\d\d)(?:@\S+)?")


def options_from_verdict(options: BisectOptions, path: Path, series: str) -> BisectOptions:
    """The options that a verdict implies; given options stay.

    Args:
        path: `verdicts.json` of the red night.
        series: `CELL/NAME`.
    """
    verdict = _find(path, series)
    outcome, tonight = _result(path.parent, verdict)
    if options.good and options.bad:
        options = _with_classifier(_with_job(options, outcome, path.parent), verdict, tonight)
        if options.repo:
            return _with_environment(options, tonight.environment, outcome)
        return _with_packages(options, tonight.environment, tonight.environment, outcome, verdict)
    last_good = _last_good(path.parent, verdict)
    if last_good is None:
        return _without_good_night(options, verdict, outcome, tonight, path.parent)
    night, earlier, before = last_good
    options = _with_classifier(_with_job(options, outcome, path.parent), verdict, tonight)
    if outcome.environment.startswith("image:"):
        return _image_ends(options, earlier, outcome)
    options = _ends(options, before.environment, tonight.environment, night)
    if is_locked(outcome.environment) or is_project(outcome.environment):
        options = _with_python(options, tonight.environment)
    if options.repo:
        return _with_environment(options, tonight.environment, outcome)
    return _with_packages(options, before.environment, tonight.environment, outcome, verdict)


def find_worst(path: Path) -> str | None:
    verdicts = sort_worst_first(read_verdicts(path).verdicts)
    return next((verdict.series for verdict in verdicts if verdict.status == "regressed"), None)


def _find(path: Path, series: str) -> Verdict:
    verdicts = read_verdicts(path).verdicts
    red = [verdict for verdict in verdicts if verdict.status == "regressed"]
    match = next((verdict for verdict in red if verdict.series == series), None)
    if match is None:
        near = difflib.get_close_matches(series, [verdict.series for verdict in red], n=1, cutoff=0.3)
        red_series = ", ".join(verdict.series for verdict in red) or "nothing"
        hint = f"did you mean {near[0]!r}?" if near else None
        raise InputError(f"{path}: {series!r} did not regress; regressed: {red_series}.", hint)
    return match


def _result(folder: Path, verdict: Verdict) -> tuple[Outcome, RunRecord]:
    """A completed job of the verdict's cell, and its result: the first in which a red test failed, or the worst."""
    completed = [
        (outcome, record)
        for outcome, record in read_night_results(folder)
        if outcome.cell == verdict.cell
        and outcome.kind in ("train", "test")
        and outcome.completed
        and record is not None
    ]
    if not completed:
        raise InputError(f"{folder}: no job of {verdict.cell} completed, so there is no test.")
    if "of_worst" in verdict.policy:
        return max(completed, key=lambda job: _badness(job[1], verdict.measure))
    return next((job for job in completed if _has_failed(job[1], verdict.measure)), completed[0])


def _badness(record: RunRecord, measure: str) -> float:
    sample = record.sample(measure)
    if sample is None or not math.isfinite(sample.level):
        return -math.inf
    return sample.level if sample.better == "lower" else -sample.level


def _cases(record: RunRecord) -> tuple[Case, ...]:
    if record.tests is None:
        return ()
    return record.tests.cases


def _has_failed(record: RunRecord, test: str) -> bool:
    return any(case.name == test and case.state == "failed" for case in _cases(record))


def _without_good_night(
    options: BisectOptions, verdict: Verdict, outcome: Outcome, tonight: RunRecord, folder: Path
) -> BisectOptions:
    """The options for a test that no night saw pass: from tonight's JAX back."""
    jax = tonight.environment.packages.get("jax")
    if verdict.judge != "tests" or jax is None or not is_project(outcome.environment):
        raise InputError(
            f"no earlier night beside {folder} was good for {verdict.series}.",
            "name both ends yourself: --good NAME==VERSION --bad NAME==VERSION",
        )
    options = _with_classifier(_with_job(options, outcome, folder), verdict, tonight)
    options = _with_python(options, tonight.environment)
    return replace(options, bad=(f"jax=={jax}",), environment=outcome.environment)


def _with_job(options: BisectOptions, outcome: Outcome, folder: Path) -> BisectOptions:
    """The test as the night's job ran it, and time enough for it."""
    return replace(
        options,
        command=_template(outcome, folder),
        timeout_s=max(options.timeout_s, 3 * outcome.duration_s),
        executor=outcome.executor,
        adapter=outcome.adapter,
        replicate=outcome.replicate,
        measure=outcome.measure,
        resources=outcome.resources if outcome.resources != Resources() else None,  # None is no part of the question
    )


def _last_good(folder: Path, red: Verdict) -> tuple[str, Outcome, RunRecord] | None:
    """The latest earlier night that was good, and a job of the cell in it with its result; None if there is none."""
    tonight = read_night(folder)
    known_good = red.policy.get("good_night")  # nights after it may have been ok while nobody had seen it yet
    nights = []
    for other in folder.absolute().parent.glob("*/verdicts.json"):
        try:
            night = read_night(other.parent)
            earlier = _find_earlier(read_verdicts(other).verdicts, red)
            sure = earlier is not None and earlier.status in _GOOD
            compared = earlier is not None and (earlier.judge, earlier.status) == ("facts", "cannot_tell")
            if isinstance(known_good, str):
                sure, compared = night.id == known_good or (sure and night.id < known_good), False
            if night.started_at < tonight.started_at and (sure or compared):
                nights.append((sure, night.started_at, night.id, *_result(other.parent, red)))
        except InputError:
            continue  # another night's damage is not this one's
    if not nights:
        return None
    _, _, night_id, outcome, record = max(nights, key=lambda night: night[:3])
    return night_id, outcome, record


def _find_earlier(verdicts: Sequence[Verdict], red: Verdict) -> Verdict | None:
    """An earlier night's verdict on a series; of a test without one, the verdict on its suite.

    A file that cannot be imported fails as a separate test, which no earlier night had.
    """
    same = [verdict for verdict in verdicts if (verdict.series, verdict.judge) == (red.series, red.judge)]
    if red.judge == "tests":
        same += [verdict for verdict in verdicts if verdict.series == f"{red.cell}/{SUITE}"]
    return next(iter(same), None)


def _template(outcome: Outcome, folder: Path) -> tuple[str, ...]:
    """The command and the variables as the matrix had them: the job's folder becomes `{out}` again."""
    own_folder = re.compile(rf"\S*{re.escape(folder.name)}/jobs/{re.escape(outcome.job)}(?![\w.-])")
    command = tuple(own_folder.sub("{out}", part) for part in outcome.command)
    if not outcome.env:
        return command
    return ("env", *(f"{name}={value}" for name, value in outcome.env.items()), *command)


def _with_classifier(options: BisectOptions, verdict: Verdict, record: RunRecord) -> BisectOptions:
    name = verdict.measure
    if verdict.judge == "tests":
        failing = (case.node for case in _cases(record) if case.state == "failed" and case.known is None)
        node = verdict.policy.get("node") or _find_file(name) or next(failing, None)
        command = select_test(options.command, str(node) if node else None, Path.cwd())
        ends_early = [case.name for case in _cases(record)] == [WHOLE_COMMAND]  # before its tests
        if ends_early and find_pytest(command) is not None:
            command = (*command, "--collect-only")
        if node and "::" not in str(node):  # a file that cannot be imported: an otherwise untestable rung is bad
            options = replace(options, failure=(*options.failure, "import"))
        same = options.deterministic or _repeats(name, record)
        return replace(options, command=command, deterministic=same)
    if verdict.judge in JUDGES:
        return replace(options, like=f"{verdict.cell}/{verdict.judge}")
    measure = record.sample(name) or record.curve(name)
    if measure is None:
        raise InputError(f"{verdict.series}: tonight's result has no {name!r}.")
    return replace(options, metric=name, better=measure.better)


def _repeats(test: str, record: RunRecord) -> bool:
    """Whether a test failed each time with an error that no chance makes: a name or an argument is gone."""
    case = next((case for case in _cases(record) if case.name == test), None)
    if case is None or not (case.message or "").startswith(_GONE):
        return False
    return case.runs > 1 or case.node is None  # a file that cannot be imported


def _find_file(name: str) -> str | None:
    """The test file of a dotted name that could not be imported; None if it is not in this folder."""
    path = Path(*name.split(".")).with_suffix(".py")
    return str(path) if path.is_file() else None


def _with_environment(options: BisectOptions, bad: Environment, outcome: Outcome) -> BisectOptions:
    """The options with the job's environment; a project's is made for each commit, with its project, tonight's JAX."""
    if options.environment != "current":
        return options
    environment = outcome.environment
    if is_project(environment) and "jax" in bad.packages and re.search(r",jax==", environment) is None:
        environment += f",jax=={bad.packages['jax']}"
    return replace(options, environment=environment)


def _with_packages(
    options: BisectOptions, good: Environment, bad: Environment, outcome: Outcome, verdict: Verdict
) -> BisectOptions:
    """The options with the unchanged packages of the job's environment, which this one may lack."""
    if outcome.environment.startswith(("current", "image:")):
        return replace(options, current=True)
    moving = {end.partition("==")[0] for end in options.bad} | {package.name for package in outcome.local_packages}
    constant = [
        f"{name}=={version}"
        for name, version in bad.packages.items()
        if good.packages.get(name) == version and name not in moving
    ]
    if is_project(outcome.environment):  # the project itself is not in a lock
        constant += [f"{package.name} @ {Path(package.path).as_uri()}" for package in outcome.local_packages]
    alone = is_project(outcome.environment) or (verdict.judge == "tests" and is_locked(outcome.environment))
    return replace(options, current=not alone, any_date=alone, with_=(*constant, *options.with_))


def _with_python(options: BisectOptions, bad: Environment) -> BisectOptions:
    if options.python is not None or bad.python == find_current().version:
        return options
    return replace(options, python=bad.python)


def _image_ends(options: BisectOptions, good: Outcome, bad: Outcome) -> BisectOptions:
    """The nightly images between two nights, if both ran in dated tags of one image."""
    ends = [_DATED_IMAGE.fullmatch(outcome.environment) for outcome in (good, bad)]
    if ends[0] is None or ends[1] is None or ends[0]["image"] != ends[1]["image"]:
        raise InputError(
            f"{bad.job} ran in {bad.environment}, and {good.job} in {good.environment} when it was good.",
            "expected dated tags of one image; or name the nights: --images REPOSITORY:NAME --good DATE --bad DATE",
        )
    if ends[0]["date"] == ends[1]["date"]:
        raise InputError(f"both nights ran in {bad.environment}.", "the image did not change: look at the machine")
    return replace(options, images=ends[1]["image"], good=(ends[0]["date"],), bad=(ends[1]["date"],))


def _ends(options: BisectOptions, good: Environment, bad: Environment, night: str) -> BisectOptions:
    versions = [{**side.packages, PYTHON: side.python} for side in (good, bad)]
    moving = [name for name in versions[0] if versions[0][name] != versions[1].get(name, versions[0][name])]
    if moving:
        ends = [tuple(f"{name}=={side[name]}" for name in moving) for side in versions]
        return replace(options, good=ends[0], bad=ends[1])
    if good.git is not None and bad.git is not None and good.git.sha != bad.git.sha:
        return replace(options, repo=(".",), good=(good.git.sha,), bad=(bad.git.sha,))
    raise InputError(
        f"neither packages nor Python nor the commit differ from the last good night, {night}.",
        "the machine may: 'Gating' in the documentation says how the machine is told from the program",
    )
