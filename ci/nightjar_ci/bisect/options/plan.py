"""The plan of a bisection, made from the options of `nightjar-ci bisect`.

In: the options. Out: a `Plan`, or an `InputError` that says which options do not go together. If the good
end is the older one, the plan looks for a regression, otherwise for a fix. No test is run and no index is asked.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.bisect.ladders.inner import Sources
from nightjar_ci.bisect.ladders.rung import OnLine
from nightjar_ci.bisect.options.choose_ladder import choose_ladder, parse_sources
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.options.question_inputs import digest_files, digest_variables
from nightjar_ci.bisect.probing.classify import BAD_TOO, Classifier, ExitCode, check_pattern, parse_metric
from nightjar_ci.bisect.probing.classify_by_gate import JUDGES, GateJudge, Judge, default_policies
from nightjar_ci.bisect.run import Plan
from nightjar_ci.bisect.search.types import SearchSettings
from nightjar_ci.bisect.state import Find, Question, digest
from nightjar_ci.environments.prepare import parse_environment
from nightjar_ci.environments.project import is_project, parse_project
from nightjar_ci.environments.uv import read_sources
from nightjar_ci.errors import InputError
from nightjar_ci.executors import EXECUTORS
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.project_files import OWN_POLICIES, find_baselines, find_policies
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.inheritance import check_passed, check_secret
from nightjar_ci.untrusted.pattern_search import SEARCH_S

_RATE = re.compile(r"\d+(?:\.\d+)?%")
JUDGED_RATE = 0.5  # of runs of a regressed rung, a judge of the gate sees this part at least

_OF_A_SHELL = ("&&", "||", "|", ";", ">", ">>", "<", "&")


def make_plan(options: BisectOptions, settings: Settings, on_line: OnLine) -> Plan:
    if not options.command:
        raise InputError("there is no test: expected a command.", "nightjar-ci bisect ... -- python test.py")
    choice = choose_ladder(options, settings, on_line)
    classifier, described = _find_classifier(options)
    seeks_end = not options.good and bool(options.bad) and options.rungs is None
    if seeks_end and not isinstance(classifier, ExitCode):
        raise InputError("--good is missing: a number or a judge tells good from bad beside a good end only.")
    executor = options.executor or "local"
    if options.executor is None and (options.images or options.environment.startswith("image:")):
        executor = "docker"
    _check_place(options, executor, choice.described["kind"])
    search = _find_search(options, classifier, choice.find)
    prepare = _split(options.prepare)
    pass_env = _check_names("--pass-env", options.pass_env, check_passed)
    ladder = dict(choice.described)
    if options.python:
        ladder["python"] = options.python
    if ladder["kind"] == "listed" and is_project(options.environment):  # an edit is another question
        folder = parse_project(options.environment.removeprefix("project:")).folder
        sources = read_sources(options.environment, (), {"": (folder, False)}, settings.environments_dir)
        ladder["contents"] = sources[""].digest
    repositories = {} if choice.described["kind"] == "commits" else parse_sources(options.repo)
    question = Question(
        ladder=ladder,
        find=choice.find,
        command=options.command,
        classifier={**described, "paired": str(search.paired)},
        files=digest_files([*options.command, *prepare, *re.split("[:, ]", options.environment)], Path.cwd()),
        variables=digest_variables(os.environ, pass_env),
        environment=options.environment,
        executor=executor,
        timeout_s=options.timeout_s,
        prepare=prepare,
        pass_env=pass_env,
        secrets=_check_names("--secret", options.secret, check_secret),
        adapter=options.adapter,
        replicate=options.replicate,
        resources=options.resources,
        measure=options.measure,
    )
    return Plan(
        question=question,
        make_ladder=choice.make,
        classifier=classifier,
        search=search,
        sources=Sources(repositories=repositories, settings=settings, python=options.python),
        seeks_end=seeks_end,
        max_minutes=options.max_minutes,
        sensors=search.paired and executor == "local",
        workers=options.workers,
        explain=options.explain,
    )


def _find_search(options: BisectOptions, classifier: Classifier, find: Find) -> SearchSettings:
    """The search's settings: for a fix, the change is an improvement, and the good end is the last."""
    metric = classifier.better
    reference: Literal["first", "last"] | None = None
    if metric is not None and find == "fix":
        metric = "higher" if metric == "lower" else "lower"
    if metric is not None and not options.deterministic:
        reference = "first" if find == "regression" else "last"
    of_facts = isinstance(classifier, GateJudge) and classifier.judges == ("facts",)
    return SearchSettings(
        deterministic=options.deterministic or of_facts,
        metric=metric,
        failure_rate=_find_failure_rate(options, classifier),
        max_tests=options.max_tests,
        reference=reference,
        seeks_fix=find == "fix",
    )


def _check_place(options: BisectOptions, executor: str, ladder: str) -> None:
    kind = {"images": "image", "packages": "uv", "locks": "uv"}.get(ladder)
    try:
        kind = kind or parse_environment(options.environment)[0]
    except ValueError as error:
        raise InputError(f"--environment: {error}.") from None
    if kind not in EXECUTORS[executor].kinds:
        raise InputError(f"the executor {executor!r} does not run this ladder, whose rungs are of the kind {kind!r}.")


def _find_classifier(options: BisectOptions) -> tuple[Classifier, dict[str, str]]:
    if options.like is not None:
        if options.metric is not None or options.failure:
            raise InputError("--like judges result.json, --metric and --failure read a test.", "leave one of them out")
        return _find_judge(options.like)
    search_s = min(SEARCH_S, options.timeout_s)
    bad_too = tuple(kind for kind in BAD_TOO if kind in options.failure)
    patterns = [text for text in options.failure if text not in BAD_TOO and not _RATE.fullmatch(text)]
    if options.metric is None:
        if len(patterns) > 1:
            raise InputError("--failure: expected one regular expression.", "'ONE|OTHER' matches either")
        failure = patterns[0] if patterns else None
        described = {"exit_code": ",".join(bad_too)}
        if failure is not None:
            check_pattern(failure, "--failure")
            described["failure"] = failure
        return ExitCode(bad_too=bad_too, failure=failure, search_s=search_s), described
    if options.failure:
        raise InputError("--failure tells failures apart, and a metric reads none.", "leave one of them out")
    metric = parse_metric(options.metric, options.better, search_s)
    kind = "metric" if metric.pattern is None else "regex"
    return metric, {kind: options.metric, "better": options.better}


def _find_failure_rate(options: BisectOptions, classifier: Classifier) -> float | None:
    rates = [float(text.removesuffix("%")) / 100 for text in options.failure if _RATE.fullmatch(text)]
    if isinstance(classifier, GateJudge):
        return JUDGED_RATE
    return rates[-1] if rates else None


def _find_judge(like: str) -> tuple[GateJudge, dict[str, str]]:
    """The judge of a cell, with the project's policies if it has any; and its part of the question."""
    cell, _, judge = like.rpartition("/")
    judges: tuple[Judge, ...] = tuple(name for name in JUDGES if name == judge)
    if not judges:
        cell, judges = like, JUDGES
    path = find_policies(None)
    policies = default_policies() if path == OWN_POLICIES else read_policies(path)
    baseline = read_convergence(find_baselines(None), cell)
    described = {"like": like, "policies": digest(policies.model_dump_json())}
    described["baseline"] = "" if baseline is None else digest(baseline.model_dump_json())
    return GateJudge(judges=judges, policies=policies, cell=cell, baseline=baseline), described


def _check_names(option: str, names: Sequence[str], check: Callable[[str], str]) -> tuple[str, ...]:
    try:
        return tuple(map(check, names))
    except ValueError as error:
        raise InputError(f"{option}: {error}.") from None


def _split(text: str | None) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text or ""))
    except ValueError as error:
        raise InputError(f"--prepare: {error}, found {text!r}.", "quote it like a shell") from None
    if words[:1] != ("sh",) and (operator := next((word for word in words if word in _OF_A_SHELL), None)) is not None:
        hint = f"sh -c {shlex.quote(text or '')}"
        raise InputError(f"--prepare: {operator!r} is for a shell, and the command runs without one.", hint)
    return words
