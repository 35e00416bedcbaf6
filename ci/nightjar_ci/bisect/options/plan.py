"""The plan of a bisection, made from the options of `nightjar-ci bisect`.

In: the options, as `Asked`. Out: a `Plan`, or an `InputError` that says which options do not go together. If the good
end is the older one, the plan looks for a regression, otherwise for a fix. No test is run and no index is asked.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.bisect.options.choose_ladder import Asked, find_rope
from nightjar_ci.bisect.options.question_inputs import digest_files, digest_variables
from nightjar_ci.bisect.probing.classify import BAD_TOO, BadToo, ExitCode, Metric, Oracle, check_pattern
from nightjar_ci.bisect.probing.classify_by_gate import GateJudge, default_policies
from nightjar_ci.bisect.probing.rung_setup import OnLine
from nightjar_ci.bisect.run import Plan
from nightjar_ci.bisect.search.types import SearchSettings
from nightjar_ci.bisect.state import Question, digest
from nightjar_ci.environments.prepare import parse_environment
from nightjar_ci.errors import InputError
from nightjar_ci.executors import EXECUTORS
from nightjar_ci.formats.policy import PerformancePolicy, Policies, read_policies
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.inheritance import check_passed, check_secret
from nightjar_ci.untrusted.pattern_search import SEARCH_S

JUDGES = ("facts", "convergence", "performance")
USUAL_POLICIES = Path("ci/policies.toml")


def make_plan(asked: Asked, settings: Settings, on_line: OnLine) -> Plan:
    """The plan of a bisection.

    Raises:
        InputError: options are missing, or do not go together.
    """
    if not asked.command:
        raise InputError("there is no test: expected a command.", "nightjar-ci bisect ... -- python test.py")
    rope = find_rope(asked, settings, on_line)
    oracle, described = _find_oracle(asked)
    pairs = _find_pairs(asked) if asked.judge == "performance" else None
    executor = asked.executor or ("docker" if asked.images else "local")
    _check_place(asked, executor)
    better = oracle.better
    paired = asked.paired if asked.paired is not None else better is not None and not asked.deterministic
    if paired and better is None:
        raise InputError("--paired divides one metric by another, and there is none.", "add --metric NAME")
    if paired and asked.deterministic:
        raise InputError("--deterministic runs each rung once, --paired in pairs.", "leave one of them out")
    prepare = _split(asked.prepare)
    pass_env = _check_names("--pass-env", asked.pass_env, check_passed)
    question = Question(
        ladder={**rope.described, **({"python": asked.python} if asked.python else {})},
        find=rope.find,
        command=asked.command,
        oracle={**described, "paired": str(paired)},
        files=digest_files([*asked.command, *prepare], Path.cwd()),
        variables=digest_variables(os.environ, pass_env),
        environment=asked.environment,
        executor=executor,
        timeout_s=asked.timeout_s,
        prepare=prepare,
        install=asked.install,
        pass_env=pass_env,
        secrets=_check_names("--secret", asked.secrets, check_secret),
    )
    return Plan(
        question=question,
        make_ladder=rope.make,
        oracle=oracle,
        search=SearchSettings(
            confidence=asked.confidence,
            deterministic=asked.deterministic or asked.judge == "facts",
            metric=better,
            max_tests=asked.max_tests,
        ),
        paired=paired,
        pairs=pairs,
        compares=isinstance(oracle, GateJudge),
        workers=asked.workers or _fitting(asked, oracle, pairs, executor),
        python=asked.python,
        repository=rope.repository,
        metric=None if better is None else (asked.metric or asked.metric_regex),
    )


def _fitting(asked: Asked, oracle: Oracle, pairs: PerformancePolicy | None, executor: str) -> int:
    """How many probes run side by side: one a core where an exit code is read on this machine, else one.

    Side by side, halving takes more tests: `--deterministic` is for as few as can be.
    """
    alone = asked.deterministic or not isinstance(oracle, ExitCode) or pairs is not None or executor != "local"
    return 1 if alone else max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)


def _check_place(asked: Asked, executor: str) -> None:
    if executor not in EXECUTORS:
        raise InputError(f"--executor: unknown executor {executor!r}: expected one of {', '.join(EXECUTORS)}.")
    kind = "image" if asked.images else "uv" if asked.package or asked.good_lock or not asked.environment else None
    try:
        kind = kind or parse_environment(asked.environment)[0]
    except ValueError as error:
        raise InputError(f"--environment: {error}.") from None
    if kind not in EXECUTORS[executor].kinds:
        raise InputError(f"--executor: {executor!r} does not run this ladder, whose rungs are of the kind {kind!r}.")


def _find_oracle(asked: Asked) -> tuple[Oracle, dict[str, str]]:
    """How the end of a test is read, and that as a part of the question."""
    named = [name for name, there in (("--metric", asked.metric), ("--metric-regex", asked.metric_regex)) if there]
    if len(named) + (asked.judge is not None) > 1 and not (asked.judge == "performance" and named == ["--metric"]):
        raise InputError("a test is read in one way: --metric, --metric-regex or --judge.")
    bad_too: list[BadToo] = [one for one in BAD_TOO if one in asked.bad_too]
    if unknown := sorted(set(asked.bad_too) - set(BAD_TOO)):
        raise InputError(f"--bad-too: {unknown[0]!r} is unknown, expected one of {', '.join(BAD_TOO)}.")
    if asked.judge is not None and asked.judge not in JUDGES:
        raise InputError(f"--judge: {asked.judge!r} is unknown, expected one of {', '.join(JUDGES)}.")
    if asked.metric_regex is not None:
        check_pattern(asked.metric_regex)
        return Metric(better=asked.better, pattern=asked.metric_regex, search_s=min(SEARCH_S, asked.timeout_s)), {
            "regex": asked.metric_regex,
            "better": asked.better,
        }
    if asked.judge is not None:
        policies = _find_policies(asked)
        described = {"judge": asked.judge, "cell": asked.cell, "policies": digest(policies.model_dump_json())}
        if asked.judge == "performance":
            return ExitCode(), {**described, "metric": asked.metric or ""}
        baseline = read_convergence(asked.baselines, asked.cell) if asked.baselines and asked.cell else None
        described["baseline"] = "" if baseline is None else digest(baseline.model_dump_json())
        kind: Literal["facts", "convergence"] = "facts" if asked.judge == "facts" else "convergence"
        return GateJudge(judge=kind, policies=policies, cell=asked.cell, baseline=baseline), described
    if asked.metric is not None:
        return Metric(better=asked.better, name=asked.metric), {"metric": asked.metric, "better": asked.better}
    return ExitCode(bad_too=tuple(bad_too)), {"exit_code": ",".join(bad_too)}


def _find_policies(asked: Asked) -> Policies:
    """Those of the file that is named, else of the usual place where it exists; `--rtol` takes the place of either."""
    path = asked.policies or (USUAL_POLICIES if USUAL_POLICIES.is_file() else None)
    if path is None or (asked.rtol is not None and asked.judge == "convergence"):
        return default_policies(asked.rtol or 1e-4)
    return read_policies(path)


def _find_pairs(asked: Asked) -> PerformancePolicy:
    """How a rung is compared with the good end."""
    found = _find_policies(asked).for_performance(asked.cell)
    if found is None:
        raise InputError(f"no performance policy is for the cell {asked.cell!r}.", "name a cell that has one: --cell")
    return found if asked.metric is None else found.model_copy(update={"sample": asked.metric})


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
