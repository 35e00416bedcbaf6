"""The options of `nightjar-ci bisect`, in one type, and how values of several forms are read.

In: the parameters as the command line parsed them. Out: `BisectOptions`, with a field for each parameter of the same
name. A red verdict fills in options that the command line left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.state import Find
from nightjar_ci.errors import InputError
from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.run_record import Better

End = TypeVar("End")


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """The options of a bisection; `nightjar-ci bisect --help` explains each one.

    Attributes:
        command: the test, the words after `--`.
        current: packages that are not bisected come from this environment, its folders included. No option: a
            verdict sets it.
        python, executor, adapter, replicate: of the job of a verdict: its Python, where it ran, how its result is
            read, and its seed. No options either.
    """

    command: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    package: tuple[str, ...] = ()
    with_: tuple[str, ...] = ()
    images: str | None = None
    repo: tuple[str, ...] = ()
    pin: tuple[str, ...] = ()
    rungs: Path | None = None
    prepare: str | None = None
    environment: str = "current"
    python: str | None = None
    any_date: bool = False
    current: bool = False
    metric: str | None = None
    better: Better = "lower"
    like: str | None = None
    failure: tuple[str, ...] = ()
    executor: str | None = None
    workers: int | None = None
    timeout_s: float = 600.0
    deterministic: bool = False
    max_tests: int = 400
    max_minutes: float | None = None
    explain: bool = False
    pass_env: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    adapter: Adapter | None = None
    replicate: int | None = None


def options_from_parameters(parameters: Mapping[str, Any]) -> BisectOptions:
    """The options as the command line parsed them; parameters that say how to run or print are left out.

    >>> options_from_parameters({"good": ["1"], "bad": None, "test": ["python", "t.py"], "dry_run": True}).command
    ('python', 't.py')
    """
    names = {field.name for field in fields(BisectOptions)}
    given = {"command": parameters["test"], **parameters}
    return BisectOptions(
        **{name: _plain(value) for name, value in given.items() if name in names and value is not None}
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return tuple(value)
    return value


def split_named(option: str, values: Sequence[str], form: str, example: str) -> list[tuple[str, str]]:
    """Names and the value of each.

    Args:
        form: such as `NAME=REV`; its first non-letter separates the two.

    >>> split_named("--pin", ["jax:third_party/xla"], "NAME:PATH", "")
    [('jax', 'third_party/xla')]
    """
    separator = next(letter for letter in form if not letter.isalpha())
    named = []
    for value in values:
        name, _, text = value.partition(separator)
        if not (name and text):
            raise InputError(f"{option}: {value!r} is not {form}.", f"{option} {example}")
        named.append((name, text))
    return named


def parse_sources(values: Sequence[str]) -> dict[str, str]:
    named = split_named("--repo", values, "NAME=FOLDER_OR_ADDRESS", "jax=../jax")
    return {canonicalize_name(name): address for name, address in named}


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderChoice:
    """A ladder that can be made, and its description."""

    described: Mapping[str, str]
    find: Find
    make: partial[Ladder]


def by_age(good: End, bad: End, find: Find) -> tuple[End, End]:
    """The old end and the new one: the bad end is the old one in a search for a fix."""
    if find == "fix":
        return bad, good
    return good, bad


def at_most_one(ends: Sequence[str], option: str) -> str | None:
    if not ends:
        return None
    return one_end(ends, option)


def one_end(ends: Sequence[str], option: str) -> str:
    if len(ends) != 1:
        raise InputError(f"{option}: expected once for this ladder, found {len(ends)} times.")
    return ends[0]
