"""The options of `nightjar-ci bisect`, in one type.

In: the parameters as the command line parsed them. Out: `BisectOptions`, with a field for each parameter of the same
name. A red verdict fills in options that the command line left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.job import Measure
from nightjar_ci.formats.resources import Resources
from nightjar_ci.formats.run_record import Better


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """The options of a bisection; `nightjar-ci bisect --help` explains each one.

    Attributes:
        command: the test, the words after `--`.
        current: packages that are not bisected come from this environment, its folders included.
        any_date: other packages may be newer than the release of a rung.
        python, executor, adapter, replicate, resources, measure: of the job of a verdict: its Python, where it ran,
            how its result is read, its seed, its nodes, its counters. These and the two above are no options: a verdict
            sets them.
    """

    command: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
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
    workers: int = 1
    timeout_s: float = 600.0
    deterministic: bool = False
    max_tests: int = 400
    max_minutes: float | None = None
    explain: bool = False
    pass_env: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    adapter: Adapter | None = None
    replicate: int | None = None
    resources: Resources | None = None
    measure: tuple[Measure, ...] = ()


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
