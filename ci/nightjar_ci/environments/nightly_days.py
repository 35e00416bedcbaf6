"""Nightly days of JAX in environments: `jax@nightly`, `jax@2026-11-20`, and pins such as `jaxlib==0.13.0.dev20261120`.

In: requirements. Out: the version of a day; and the options with which uv finds the wheels of that day, which are in no
other index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime

from nightjar_ci.errors import InputError
from nightjar_ci.jax_nightly.day_index import serve_day
from nightjar_ci.jax_nightly.days import NAMES, Day, read_date, read_days
from nightjar_ci.settings import read_settings
from nightjar_ci.web.package_index import Release

NEWEST = "nightly"
_DAY = re.compile(rf"\b(jax(?:\[[^\]]*\])?)\s*@\s*({NEWEST}|\d{{4}}-\d{{2}}-\d{{2}})(?![\w/:.-])")
_PIN = re.compile(rf"^(?:{'|'.join(NAMES)})(?:\[[^\]]*\])?==(\S*\.dev20\d{{6}})\b", re.MULTILINE)


def name_days(text: str) -> str:
    """A text with the version of each day, `jax==0.13.0.dev20261120` for `jax@2026-11-20`.

    >>> name_days("jax==0.12.0,flax@2026-11-20")
    'jax==0.12.0,flax@2026-11-20'
    """
    if not _DAY.search(text):
        return text
    days = _read()
    return _DAY.sub(lambda found: f"{found[1]}=={_find(days, found[2]).versions['jax']}", text)


def open_pinned_day(
    lines: Sequence[str], find_default_index: Callable[[], str]
) -> AbstractContextManager[tuple[tuple[str, ...], dict[str, str]]]:
    """Options and variables of uv for requirements with a nightly pin, while the context is open; else none."""
    dates = {date for line in lines for version in _PIN.findall(line) if (date := read_date(version))}
    if not dates:
        return nullcontext(((), {}))
    if len(dates) > 1:
        raise InputError(f"the requirements have JAX of several days: {', '.join(sorted(dates))}.", "use one day")
    return serve_day(_find(_read(), dates.pop()), find_default_index())


def complete_day(lines: Sequence[str]) -> list[str]:
    """Requirements in which a nightly jax brings the jaxlib and plugins of its day, and not the newest releases.

    >>> complete_day(["jax[cuda12]==0.13.0.dev20261120"])[1:]  # doctest: +NORMALIZE_WHITESPACE
    ['jaxlib==0.13.0.dev20261120', 'jax-cuda12-plugin==0.13.0.dev20261120', 'jax-cuda12-pjrt==0.13.0.dev20261120']
    """
    completed = list(lines)
    named = {re.split(r"[\[=<>!~ ;@]", line)[0] for line in lines}
    for line in lines:
        pinned = _PIN.search(line)
        if pinned is None or not re.match(r"jax(\[|==)", line):
            continue
        wanted = ["jaxlib"]
        wanted += [name for cuda in re.findall(r"cuda\d+", line) for name in NAMES if name.startswith(f"jax-{cuda}-")]
        completed += [f"{name}=={pinned[1]}" for name in wanted if name not in named]
    return completed


def read_nightly_releases(package: str) -> list[Release]:
    """The nightly versions of a package, each released on its day, oldest first."""
    return [
        Release(version=day.versions[package], uploaded=datetime.fromisoformat(f"{day.date}T00:00:00+00:00"))
        for day in _read()
        if package in day.versions
    ]


def _read() -> tuple[Day, ...]:
    return read_days(read_settings().nightly_index)


def _find(days: Sequence[Day], date: str) -> Day:
    whole = [day for day in days if {"jax", "jaxlib"} <= day.versions.keys()]
    for day in reversed(whole):
        if date in (NEWEST, day.date):
            return day
    dates = f"{whole[0].date} to {whole[-1].date}" if whole else "none"
    raise InputError(f"the index has no jax and jaxlib of {date}: it has {dates}.", "choose another date")
