"""A trial in words, and as JSON.

In: a `Trial`. Out: lines for a terminal, with the command that finds the release; a document for programs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from nightjar_ci.errors import ExitCode
from nightjar_ci.projects.trial import Difference, Trial
from nightjar_ci.suites.command import select_test

_MOST_NAMED = 20


def find_exit_code(trial: Trial) -> ExitCode:
    """0: no passing test fails now; 1: one does; 3: a job did not complete; 4: the tests that ran cannot tell."""
    if any(side.counts is None for side in trial.sides):
        return ExitCode.FAILED
    if trial.broken or (trial.before is None and trial.failing):
        return ExitCode.NO
    if trial.untimed or not any(side.n_passed for side in trial.sides):
        return ExitCode.CANNOT_TELL
    if trial.before is not None and not trial.n_compared:
        return ExitCode.CANNOT_TELL
    return ExitCode.OK


def render_trial(trial: Trial, commands: Mapping[str, Sequence[str]], notes: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a trial.

    Args:
        commands: the command of each job of the matrix.
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
    if trial.before is None:
        yield from _list("fail", "", trial.failing)
    else:
        before, after = names
        yield from _list("fail", f" with {after}, not with {before}", trial.broken)
        yield from _list("pass", f" with {after}, not with {before}", trial.mended)
        yield from _list("fail", " with both", trial.failing)
        yield from _list("fail", f" with {after}, and had no time to run with {before}", trial.untimed)
    if trial.absent:
        yield f"{len(trial.absent):,} tests are on one side only, such as {trial.absent[0]}"
    if find_exit_code(trial) == ExitCode.CANNOT_TELL and not any(side.n_passed for side in trial.sides):
        yield "Cannot tell: no test passes. Do the tests need a variable? --env NAME=VALUE sets one."
    elif trial.before is not None and not (trial.broken or trial.mended) and _completed(trial):
        yield _describe_same(trial.n_compared)
    yield from notes
    if (command := _render_bisect(trial, commands)) is not None:
        yield f"Find the change: {command}"
    yield f"Logs: {trial.folder}"


def render_json(trial: Trial, notes: Sequence[str] = ()) -> JsonValue:
    """The document of a trial."""
    document: JsonValue = to_jsonable_python(
        {
            "folder": str(trial.folder),
            "sides": [asdict(side) for side in trial.sides],
            **{name: list(map(asdict, getattr(trial, name))) for name in ("broken", "mended", "failing", "untimed")},
            "absent": trial.absent,
            "n_compared": trial.n_compared,
            "packages": trial.packages,
            "notes": notes,
            "exit_code": find_exit_code(trial),
        }
    )
    return document


def _name_sides(trial: Trial) -> list[str]:
    """The sides by their JAX; by their environment if JAX is the same."""
    versions = [side.jax for side in trial.sides]
    if None in versions or len(set(versions)) < len(versions):
        return [side.environment for side in trial.sides]
    return [f"jax {version}" for version in versions]


def _describe_same(n_compared: int) -> str:
    """The sentence that no test with known results differs.

    >>> _describe_same(795), _describe_same(1)
    ('None of the 795 tests that ran on both sides differs.', 'The one test that ran on both sides does not differ.')
    """
    if n_compared == 0:
        return "Cannot tell: no test ran on both sides."
    if n_compared == 1:
        return "The one test that ran on both sides does not differ."
    return f"None of the {n_compared:,} tests that ran on both sides differs."


def _completed(trial: Trial) -> bool:
    return all(side.counts is not None for side in trial.sides)


def _list(verb: str, where: str, differences: Sequence[Difference]) -> Iterator[str]:
    if not differences:
        return
    if len(differences) == 1:
        yield f"1 test {'passes' if verb == 'pass' else f'{verb}s'}{where}:"
    else:
        yield f"{len(differences):,} tests {verb}{where}:"
    for difference in differences[:_MOST_NAMED]:
        yield f"  {difference.test}: {difference.message.splitlines()[0]}"
    if len(differences) > _MOST_NAMED:
        yield f"  and {len(differences) - _MOST_NAMED:,} more"


def _render_bisect(trial: Trial, commands: Mapping[str, Sequence[str]]) -> str | None:
    """The command that finds the release or commit of JAX that broke the first test."""
    before, after = trial.before, trial.after
    if not trial.broken or before is None or before.jax is None or after.jax is None or before.jax == after.jax:
        return None
    first = trial.broken[0]
    test = select_test(commands[first.job], first.node, Path.cwd())
    ends = ["nightjar-ci", "bisect", "--package", "jax", "--good", before.jax, "--bad", after.jax]
    return shlex.join([*ends, "--environment", before.environment, "--", *test])
