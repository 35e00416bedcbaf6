"""A trial in words, and as JSON.

In: a `Trial`. Out: lines for a terminal, with the command that finds the release; a document for programs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from nightjar_ci.errors import ExitCode
from nightjar_ci.formats.suite import WHOLE_COMMAND
from nightjar_ci.projects.removed import Removal, find_missing_module
from nightjar_ci.projects.trial import Difference, Trial
from nightjar_ci.suites.command import find_pytest, select_test

_MOST_NAMED = 20


def find_exit_code(trial: Trial) -> ExitCode:
    """0: no passing test fails now; 1: one does; 3: a job did not complete; 4: the tests that ran cannot tell."""
    if any(side.counts is None for side in trial.sides):
        return ExitCode.FAILED
    lost = any(difference.error in trial.removed for difference in trial.failing)
    if trial.broken or lost:
        return ExitCode.NO
    if trial.untimed or not trial.n_compared or not any(side.n_passed for side in trial.sides):
        return ExitCode.CANNOT_TELL
    return ExitCode.OK


def render_trial(trial: Trial, commands: Mapping[str, Sequence[str]], notes: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a trial.

    Args:
        notes: parts that the trial could not run.
    """
    names = _name_sides(trial)
    width = max(map(len, names))
    for name, side in zip(names, trial.sides, strict=True):
        yield f"{name:<{width}}  {side.counts or 'did not complete'}, {side.duration_s:.0f} s   ({side.environment})"
        if side.failure is not None:
            yield f"  {side.failure}"
    others = [change for change in trial.packages if change[0] not in ("jax", "jaxlib")]
    if others:
        changes = (f"{name} {old or 'absent'} -> {new or 'absent'}" for name, old, new in others)
        yield f"Other packages that differ: {', '.join(changes)}"
    before, after = names
    yield from _list("failed with both", trial.failing, trial.removed)
    yield from _list(f"failed with {after}, not with {before}", trial.broken, trial.removed)
    yield from _list(f"passed with {after}, not with {before}", trial.mended, {})
    yield from _list(f"failed with {after}, and had no time to run with {before}", trial.untimed, trial.removed)
    if trial.absent:
        yield f"{len(trial.absent):,} tests ran on one side only, such as {trial.absent[0]}"
    completed = all(side.counts is not None for side in trial.sides)
    if find_exit_code(trial) == ExitCode.CANNOT_TELL and not any(side.n_passed for side in trial.sides):
        lacking = {find_missing_module(difference.message) for difference in trial.failing} - {None}
        why = "Do the tests need a variable? --env NAME=VALUE sets one."
        if lacking:
            why = f"They lack {', '.join(sorted(map(str, lacking)))}, which no requirement of the project brings."
        yield f"Cannot tell: no test passes. {why}"
    elif not (trial.broken or trial.mended) and completed:
        same = f"No difference in {_count(trial.n_compared, 'test')} that ran on both sides."
        if not trial.n_compared:
            same = "Cannot tell: no test ran on both sides."
        yield same
    if trial.failing and not trial.removed and trial.before.jax != trial.after.jax:
        yield "If they passed with an older JAX, --against jax==VERSION finds what broke them."
    yield from notes
    if (command := _render_bisect(trial, commands)) is not None:
        yield f"Find the change: {command}"
    yield f"Logs: {trial.folder}"


def render_json(trial: Trial, notes: Sequence[str] = ()) -> JsonValue:
    document: JsonValue = to_jsonable_python(
        {
            "folder": str(trial.folder),
            "sides": [asdict(side) for side in trial.sides],
            **{name: list(map(asdict, getattr(trial, name))) for name in ("broken", "mended", "failing", "untimed")},
            "absent": trial.absent,
            "n_compared": trial.n_compared,
            "packages": trial.packages,
            "removed": {error: asdict(removal) for error, removal in trial.removed.items()},
            "notes": notes,
            "exit_code": find_exit_code(trial),
        }
    )
    return document


def _name_sides(trial: Trial) -> list[str]:
    versions = [side.jax for side in trial.sides]
    if None in versions or len(set(versions)) < len(versions):
        return [re.sub(r"^(commit:\w{12}).*", r"\1", side.environment) for side in trial.sides]
    return [f"jax {version}" for version in versions]


def _list(how: str, differences: Sequence[Difference], removed: Mapping[str, Removal]) -> Iterator[str]:
    if not differences:
        return
    yield f"{_count_tests(differences)} {how}:"
    groups: dict[str, list[Difference]] = {}
    for difference in differences:
        groups.setdefault(difference.error, []).append(difference)
    shown = sorted(groups.items(), key=lambda item: -len(item[1]))[:_MOST_NAMED]
    for error, group in shown:
        if len(group) == 1 and not group[0].is_module and error not in removed:
            yield f"  {group[0].test}: {error}"
            continue
        yield f"  {_describe_group(group, removed.get(error))}: {error}"
        yield f"    {', '.join(difference.test for difference in group[:_MOST_NAMED])}"
        if len(group) > _MOST_NAMED:
            yield f"    and {len(group) - _MOST_NAMED:,} more"
    if len(groups) > len(shown):
        yield f"  and {len(groups) - len(shown):,} more errors"


def _count_tests(differences: Sequence[Difference]) -> str:
    """`2 modules and 1 test`; a module counts as the tests that it took along."""
    modules = sum(difference.is_module and not difference.n_tests for difference in differences)
    tests = sum(difference.n_tests or int(not difference.is_module) for difference in differences)
    return " and ".join(_count(number, noun) for number, noun in ((modules, "module"), (tests, "test")) if number)


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def _describe_group(group: Sequence[Difference], removal: Removal | None) -> str:
    """The damage of one error: `jax 0.7.0 removed jax.a.b (0.6.2 has it): 9 modules failed at import`."""
    n_taken = sum(difference.n_tests or 0 for difference in group)
    if group[0].test == WHOLE_COMMAND:
        text = "the command ended before its tests"
    elif all(difference.is_module for difference in group):
        text = f"{_count(len(group), 'module')} failed at import"
    else:
        text = _count(len(group), "test")
    if n_taken:
        text += f" and took {_count(n_taken, 'test')} along"
    if removal is None:
        return text
    return f"jax {removal.release} removed {removal.name} ({removal.last} has it): {text}"


def _render_bisect(trial: Trial, commands: Mapping[str, Sequence[str]]) -> str | None:
    """The command that finds the release or commit of JAX that broke the first test."""
    before, after = trial.before, trial.after
    if not trial.broken or before.jax is None or after.jax is None or before.jax == after.jax:
        return None
    first = trial.broken[0]
    test = select_test(commands[first.job], first.node, Path.cwd())
    words = ["nightjar-ci", "bisect", "--good", f"jax=={before.jax}", "--bad", f"jax=={after.jax}"]
    words += ["--environment", before.environment]
    if first.is_module:  # pytest ends before a test, the same each time; only this error is the break
        error = first.message.partition("\n")[0].partition(" (")[0]
        if first.test == WHOLE_COMMAND:  # "exit code 4, expected 0: ImportError: ..."
            error = error.partition(": ")[2]
        if error:
            words += ["--failure", re.sub(r"[^\w :,=-]", ".", error)]  # a shell quotes it once
        words.append("--deterministic")
        if first.test == WHOLE_COMMAND and find_pytest(test) is not None:  # a test that fails with both is no end
            test = (*test, "--collect-only")
    return shlex.join([*words, "--", *test])
