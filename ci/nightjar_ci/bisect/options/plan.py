"""The plan of a bisection, made from the options of `nightjar-ci bisect`.

In: the options. Out: a `Plan`, or an `InputError` that says which options do not go together. If the good
end is the older one, the plan looks for a regression, otherwise for a fix. No test is run and no index is asked.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.bisect.ladders.inner import Sources
from nightjar_ci.bisect.options.choose_ladder import choose_ladder
from nightjar_ci.bisect.options.named_values import parse_sources
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.options.question_inputs import digest_files, digest_variables
from nightjar_ci.bisect.probing.classify import BAD_TOO, BadToo, Classifier, ExitCode, Metric, check_pattern
from nightjar_ci.bisect.probing.classify_by_gate import GateJudge, default_policies
from nightjar_ci.bisect.probing.rung_setup import OnLine
from nightjar_ci.bisect.run import Plan
from nightjar_ci.bisect.search.types import SearchSettings
from nightjar_ci.bisect.state import Question, digest
from nightjar_ci.environments.prepare import parse_environment
from nightjar_ci.errors import InputError
from nightjar_ci.executors import EXECUTORS
from nightjar_ci.formats.policy import PerformancePolicy, Policies, read_policies
from nightjar_ci.formats.project_files import OWN_POLICIES, find_baselines, find_policies
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.inheritance import check_passed, check_secret
from nightjar_ci.untrusted.pattern_search import SEARCH_S

JUDGES = ("facts", "convergence", "performance")


def make_plan(options: BisectOptions, settings: Settings, on_line: OnLine) -> Plan:
    """The plan of a bisection."""
    if not options.command:
        raise InputError("there is no test: expected a command.", "nightjar-ci bisect ... -- python test.py")
    choice = choose_ladder(options, settings, on_line)
    classifier, described = _find_classifier(options)
    pairs = _find_pairs(options) if options.judge == "performance" else None
    seeks_end = not options.good and bool(options.bad) and options.rungs is None
    if seeks_end and not isinstance(classifier, ExitCode):
        raise InputError("--good is missing: a number or a judge tells good from bad beside a good end only.")
    if options.suspect is not None:
        check_pattern(options.suspect, "--suspect")
    executor = options.executor or ("docker" if options.images else "local")
    _check_place(options, executor)
    better = classifier.better
    paired = options.paired
    if paired is None:
        paired = better is not None and not options.deterministic
    if paired and better is None:
        raise InputError("--paired divides one metric by another, and there is none.", "add --metric NAME")
    if paired and options.deterministic:
        raise InputError("--deterministic runs each rung once, --paired in pairs.", "leave one of them out")
    prepare = _split(options.prepare)
    pass_env = _check_names("--pass-env", options.pass_env, check_passed)
    ladder = dict(choice.described)
    if options.python:
        ladder["python"] = options.python
    question = Question(
        ladder=ladder,
        find=choice.find,
        command=options.command,
        classifier={**described, "paired": str(paired)},
        files=digest_files([*options.command, *prepare], Path.cwd()),
        variables=digest_variables(os.environ, pass_env),
        environment=options.environment,
        executor=executor,
        timeout_s=options.timeout_s,
        prepare=prepare,
        install=options.install,
        pass_env=pass_env,
        secrets=_check_names("--secret", options.secret, check_secret),
        adapter=options.adapter,
        replicate=options.replicate,
    )
    return Plan(
        question=question,
        make_ladder=choice.make,
        classifier=classifier,
        search=SearchSettings(
            confidence=options.confidence,
            deterministic=options.deterministic or options.judge == "facts",
            metric=better,
            max_tests=options.max_tests,
        ),
        paired=paired,
        pairs=pairs,
        suspect=options.suspect,
        seeks_end=seeks_end,
        max_minutes=options.max_minutes,
        sensors=options.sensors and paired and executor == "local",
        compares=isinstance(classifier, GateJudge),
        workers=options.workers or _fitting(options, classifier, pairs, executor),
        python=options.python,
        sources=Sources(repositories=parse_sources(options.source), settings=settings, python=options.python),
        explain=options.explain,
        metric=None if better is None else (options.metric or options.metric_regex),
    )


def _fitting(options: BisectOptions, classifier: Classifier, pairs: PerformancePolicy | None, executor: str) -> int:
    """The number of parallel probes: one per core for exit codes on this machine, else one.

    In parallel, halving takes more tests: `--deterministic` minimizes their number.
    """
    alone = options.deterministic or not isinstance(classifier, ExitCode) or pairs is not None or executor != "local"
    if alone or not hasattr(os, "sched_getaffinity"):
        return 1
    return max(1, len(os.sched_getaffinity(0)))


def _check_place(options: BisectOptions, executor: str) -> None:
    if executor not in EXECUTORS:
        raise InputError(f"--executor: unknown executor {executor!r}: expected one of {', '.join(EXECUTORS)}.")
    if options.images:
        kind = "image"
    elif options.package or options.good_lock or not options.environment:
        kind = "uv"
    else:
        kind = None
    try:
        kind = kind or parse_environment(options.environment)[0]
    except ValueError as error:
        raise InputError(f"--environment: {error}.") from None
    if kind not in EXECUTORS[executor].kinds:
        raise InputError(f"--executor: {executor!r} does not run this ladder, whose rungs are of the kind {kind!r}.")


def _find_classifier(options: BisectOptions) -> tuple[Classifier, dict[str, str]]:
    """The classifier of a test, and its part of the question."""
    named = [name for name, value in (("--metric", options.metric), ("--metric-regex", options.metric_regex)) if value]
    if len(named) + (options.judge is not None) > 1 and not (options.judge == "performance" and named == ["--metric"]):
        raise InputError("a test is read in one way: --metric, --metric-regex or --judge.")
    if options.failure is not None and (named or options.judge is not None):
        raise InputError("--failure tells failures apart, and a metric or a judge reads none.", "leave one of them out")
    bad_too: list[BadToo] = [kind for kind in BAD_TOO if kind in options.bad_too]
    if unknown := sorted(set(options.bad_too) - set(BAD_TOO)):
        raise InputError(f"--bad-too: {unknown[0]!r} is unknown, expected one of {', '.join(BAD_TOO)}.")
    if options.judge is not None and options.judge not in JUDGES:
        raise InputError(f"--judge: {options.judge!r} is unknown, expected one of {', '.join(JUDGES)}.")
    if options.metric_regex is not None:
        check_pattern(options.metric_regex, "--metric-regex", groups=1)
        return Metric(better=options.better, pattern=options.metric_regex, search_s=min(SEARCH_S, options.timeout_s)), {
            "regex": options.metric_regex,
            "better": options.better,
        }
    if options.judge is not None:
        policies = _find_policies(options)
        described = {"judge": options.judge, "cell": options.cell, "policies": digest(policies.model_dump_json())}
        if options.judge == "performance":
            return ExitCode(), {**described, "metric": options.metric or ""}
        baseline = None
        if options.cell:
            baseline = read_convergence(find_baselines(options.baselines), options.cell)
        described["baseline"] = "" if baseline is None else digest(baseline.model_dump_json())
        kind: Literal["facts", "convergence"] = "facts" if options.judge == "facts" else "convergence"
        return GateJudge(judge=kind, policies=policies, cell=options.cell, baseline=baseline), described
    if options.metric is not None:
        return Metric(better=options.better, name=options.metric), {"metric": options.metric, "better": options.better}
    described = {"exit_code": ",".join(bad_too)}
    if options.failure is not None:
        check_pattern(options.failure, "--failure")
        described["failure"] = options.failure
    search_s = min(SEARCH_S, options.timeout_s)
    return ExitCode(bad_too=tuple(bad_too), failure=options.failure, search_s=search_s), described


def _find_policies(options: BisectOptions) -> Policies:
    """The policies of the named file, else of the project's file if any; `--rtol` replaces either."""
    path = find_policies(options.policies)
    if path == OWN_POLICIES or (options.rtol is not None and options.judge == "convergence"):
        return default_policies(options.rtol or 1e-4)
    return read_policies(path)


def _find_pairs(options: BisectOptions) -> PerformancePolicy:
    """How a rung is compared with the good end."""
    policy = _find_policies(options).for_performance(options.cell)
    if policy is None:
        raise InputError(f"no performance policy is for the cell {options.cell!r}.", "name a cell that has one: --cell")
    if options.metric is None:
        return policy
    return policy.model_copy(update={"sample": options.metric})


def _check_names(option: str, names: Sequence[str], check: Callable[[str], str]) -> tuple[str, ...]:
    try:
        return tuple(map(check, names))
    except ValueError as error:
        raise InputError(f"{option}: {error}.") from None


def _split(text: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise InputError(f"--prepare: {error}, found {text!r}.", "quote it like a shell") from None
