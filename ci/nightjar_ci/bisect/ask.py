"""What does a command line ask? Options of `nightjar-ci bisect` become a `Plan`; nothing is run and no index is asked.

In: the options, as `Asked`. Out: a `Plan`, or an `InputError` that says which options do not go together. The order of
the ends says what is looked for: where the good end is the older one a regression, else a fix.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from nightjar_ci.baselines import read_convergence
from nightjar_ci.bisect.evidence import SearchSettings
from nightjar_ci.bisect.judged import GateJudge, default_policies
from nightjar_ci.bisect.ladders.commits import find_commit, is_ancestor, make_commit_ladder, open_repository
from nightjar_ci.bisect.ladders.images import make_image_ladder
from nightjar_ci.bisect.ladders.listed import make_listed_ladder, position
from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder, parse_lock
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.oracle import BAD_TOO, BadToo, ExitCode, Metric, Oracle, check_pattern
from nightjar_ci.bisect.run import Plan
from nightjar_ci.bisect.state import Find, Question, digest, digest_files
from nightjar_ci.bisect.workshop import OnLine
from nightjar_ci.environments import parse_environment
from nightjar_ci.errors import InputError
from nightjar_ci.executors import EXECUTORS
from nightjar_ci.policy import PerformancePolicy, Policies, read_policies
from nightjar_ci.record import Better
from nightjar_ci.settings import Settings
from nightjar_ci.uv_environment import freeze
from nightjar_ci.web.http import hide_passwords

JUDGES = ("facts", "convergence", "performance")
USUAL_POLICIES = Path("ci/policies.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options, as they are given (`nightjar-ci bisect --help`).

    Attributes:
        current: all packages that do not move are those of this environment, its folders included.
    """

    command: tuple[str, ...]
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    package: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    good_lock: Path | None = None
    bad_lock: Path | None = None
    images: str | None = None
    repository: str | None = None
    rungs: Path | None = None
    prepare: str | None = None
    install: bool = False
    environment: str = "current"
    python: str | None = None
    dated: bool = True
    current: bool = False
    metric: str | None = None
    metric_regex: str | None = None
    better: Better = "lower"
    judge: str | None = None
    policies: Path | None = None
    baselines: Path | None = None
    cell: str = ""
    rtol: float | None = None
    paired: bool = False
    bad_too: tuple[str, ...] = ()
    executor: str | None = None
    workers: int | None = None
    timeout_s: float = 600.0
    confidence: float = 0.99
    deterministic: bool = False
    max_tests: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rope:
    """A ladder that can be made, and what it is called."""

    described: Mapping[str, str]
    find: Find
    make: partial[Ladder]
    repository: Path | None = None


def make_plan(asked: Asked, settings: Settings, on_line: OnLine) -> Plan:
    """The plan of a bisection.

    Raises:
        InputError: options are missing, or do not go together.
    """
    if not asked.command:
        raise InputError("there is no test: expected a command.", "nightjar-ci bisect ... -- python test.py")
    rope = _find_ladder(asked, settings, on_line)
    oracle, described = _find_oracle(asked)
    pairs = _find_pairs(asked) if asked.judge == "performance" else None
    executor = asked.executor or ("docker" if asked.images else "local")
    _check_place(asked, executor)
    better = oracle.better
    paired = asked.paired
    if paired and better is None:
        raise InputError("--paired divides one metric by another, and there is none.", "add --metric NAME")
    question = Question(
        ladder=dict(rope.described),
        command=asked.command,
        oracle={**described, "paired": str(paired)},
        files=digest_files(asked.command, Path.cwd()),
        environment=asked.environment,
        executor=executor,
        timeout_s=asked.timeout_s,
        prepare=_split(asked.prepare),
        install=asked.install,
    )
    return Plan(
        question=question,
        find=rope.find,
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


def _find_ladder(asked: Asked, settings: Settings, on_line: OnLine) -> _Rope:
    given = {
        "--package": bool(asked.package)
        or (bool(asked.good) and all("==" in end for end in (*asked.good, *asked.bad))),
        "--good-lock": asked.good_lock is not None or asked.bad_lock is not None,
        "--images": asked.images is not None,
        "--repo": asked.repository is not None,
        "--rungs": asked.rungs is not None,
    }
    chosen = [name for name, there in given.items() if there]
    if len(chosen) != 1:
        found = " and ".join(chosen) if chosen else "none"
        expected = f"expected one of {', '.join(given)}"
        raise InputError(f"{found} of the ladders is named: {expected}.", "--package jax --good 0.4.31 --bad 0.5.0")
    makers = {
        "--package": _packages,
        "--good-lock": _locks,
        "--images": _images,
        "--repo": _commits,
        "--rungs": _listed,
    }
    return makers[chosen[0]](asked, settings, on_line)


def _packages(asked: Asked, settings: Settings, on_line: OnLine) -> _Rope:
    good, bad = (_versions(asked, ends, name) for ends, name in ((asked.good, "--good"), (asked.bad, "--bad")))
    if set(good) != set(bad):
        raise InputError(f"--good names {', '.join(good) or 'nothing'}, --bad {', '.join(bad) or 'nothing'}.",
                         "both ends need a version of every package")  # fmt: skip
    find = _direction(good, bad)
    base = _current(asked) if asked.current else Base(wanted=asked.wanted, python=asked.python, dated=asked.dated)
    return _rope_of_packages("packages", good, bad, find, base, settings, on_line)


def _current(asked: Asked) -> Base:
    """All that is installed here."""
    frozen = freeze()
    pins = parse_lock("\n".join(frozen.pins.values()))
    folders = {name: (str(folder), editable) for name, (folder, editable) in frozen.folders.items()}
    return Base(wanted=asked.wanted, pins=pins, folders=folders, python=asked.python, dated=False)


def _locks(asked: Asked, settings: Settings, on_line: OnLine) -> _Rope:
    if asked.good_lock is None or asked.bad_lock is None:
        raise InputError("--good-lock and --bad-lock belong together.")
    good, bad = (_read_lock(path) for path in (asked.good_lock, asked.bad_lock))
    moving = [name for name in good if name in bad and good[name] != bad[name]]
    pins = {name: version for name, version in good.items() if bad.get(name) == version}
    base = Base(wanted=asked.wanted, pins=pins, python=asked.python, dated=False)
    ends = {name: good[name] for name in moving}, {name: bad[name] for name in moving}
    return _rope_of_packages("locks", *ends, "regression", base, settings, on_line)


def _rope_of_packages(
    what: str,
    good: dict[str, str],
    bad: dict[str, str],
    find: Find,
    base: Base,
    settings: Settings,
    on_line: OnLine,
) -> _Rope:
    old, new = (good, bad) if find == "regression" else (bad, good)
    described = {
        "what": "-".join(sorted(old)[:3]),
        "kind": what,
        "old": str(sorted(old.items())),
        "new": str(sorted(new.items())),
        "base": str((base.wanted, sorted(base.pins.items()), sorted(base.folders.items()), base.python, base.dated)),
    }
    make = partial(make_package_ladder, old, new, base, settings.index_url, on_line)
    return _Rope(described=described, find=find, make=make)


def _images(asked: Asked, settings: Settings, on_line: OnLine) -> _Rope:
    assert asked.images is not None
    good, bad = _one(asked.good, "--good"), _one(asked.bad, "--bad")
    old, new = sorted((good, bad), key=lambda end: end[-10:])
    described = {"what": "images", "kind": "images", "source": hide_passwords(asked.images), "old": old, "new": new}
    find: Find = "regression" if old == good else "fix"
    return _Rope(described=described, find=find, make=partial(make_image_ladder, asked.images, old, new, on_line))


def _commits(asked: Asked, settings: Settings, on_line: OnLine) -> _Rope:
    assert asked.repository is not None
    repository = open_repository(asked.repository, settings.state_dir / "repositories")
    good, bad = (find_commit(repository, _one(*ends)) for ends in ((asked.good, "--good"), (asked.bad, "--bad")))
    find: Find = "regression" if is_ancestor(repository, good, bad) or not is_ancestor(repository, bad, good) else "fix"
    old, new = (good, bad) if find == "regression" else (bad, good)
    described = {"what": repository.name.removesuffix(".git"), "kind": "commits", "repository": str(repository)}
    described |= {"old": old, "new": new}
    make = partial(make_commit_ladder, repository, old, new)
    return _Rope(described=described, find=find, make=make, repository=repository)


def _listed(asked: Asked, settings: Settings, on_line: OnLine) -> _Rope:
    assert asked.rungs is not None
    path = asked.rungs
    good = _one(asked.good, "--good") if asked.good else None
    bad = _one(asked.bad, "--bad") if asked.bad else None
    fix = good is not None and bad is not None and position(path, good) > position(path, bad)
    old, new = (bad, good) if fix else (good, bad)
    described = {"what": path.stem, "kind": "listed", "old": old or "", "new": new or ""}
    described |= digest_files([str(path)], Path.cwd())
    return _Rope(
        described=described, find="fix" if fix else "regression", make=partial(make_listed_ladder, path, old, new)
    )


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
        return Metric(better=asked.better, pattern=asked.metric_regex), {
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


def _versions(asked: Asked, ends: Sequence[str], option: str) -> dict[str, str]:
    """The version of each package at one end: `0.4.31` for the only package, `jax==0.4.31` for any."""
    names = [canonicalize_name(name) for name in asked.package]
    found: dict[str, str] = {}
    for end in ends:
        if "==" not in end:
            if len(names) != 1:
                raise InputError(
                    f"{option}: whose version is {end!r}?", f"{option} {names[0] if names else 'jax'}=={end}"
                )
            found[names[0]] = _version(end, option)
            continue
        try:
            requirement = Requirement(end)
        except InvalidRequirement:
            raise InputError(f"{option}: {end!r} is no NAME==VERSION.") from None
        exact = [one.version for one in requirement.specifier if one.operator == "=="]
        if len(exact) != 1:
            raise InputError(f"{option}: {end!r} is no NAME==VERSION.")
        found[canonicalize_name(requirement.name)] = _version(exact[0], option)
    for name in names:
        if name not in found and len(ends) == 1 and "==" not in ends[0]:
            found[name] = _version(ends[0], option)
    if not found:
        raise InputError(f"{option} is missing.", f"{option} VERSION, or {option} NAME==VERSION for several packages")
    return found


def _version(text: str, option: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise InputError(f"{option}: {text!r} is no version.") from None


def _direction(good: Mapping[str, str], bad: Mapping[str, str]) -> Find:
    moved = [name for name in good if good[name] != bad[name]]
    return "fix" if moved and all(Version(good[name]) > Version(bad[name]) for name in moved) else "regression"


def _read_lock(path: Path) -> dict[str, str]:
    try:
        pins = parse_lock(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InvalidRequirement) as error:
        raise InputError(f"{path}: cannot be read as a lock file: {str(error).splitlines()[0]}.") from None
    if not pins:
        raise InputError(f"{path}: there is no NAME==VERSION in it.")
    return pins


def _one(ends: Sequence[str], option: str) -> str:
    if len(ends) != 1:
        raise InputError(f"{option}: expected once for this ladder, found {len(ends)} times.")
    return ends[0]


def _split(text: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise InputError(f"--prepare: {error}, found {text!r}.", "quote it like a shell") from None
