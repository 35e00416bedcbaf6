"""Ladders of several packages: which day's index each of their environments is resolved with."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from nightjar_ci.bisect.ladders import packages
from tests.ci.bisect.test_ladders import START, ladder_of, releases


def test_an_environment_is_never_older_than_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"jax": releases(v1=20, v2=40), "flax": releases(v1=5, v2=10)}  # flax 2 is older than jax 1
    monkeypatch.setattr(packages, "read_releases", lambda name, url: known[name])
    days: list[float] = []

    def resolve(lines: list[str], *, before: datetime, **_: Any) -> dict[str, str]:
        days.append((before - START).days - 1)
        return packages.parse_lock("\n".join(lines))

    monkeypatch.setattr(packages, "resolve", resolve)
    ladder = ladder_of({"jax": "1", "flax": "1"}, {"jax": "2", "flax": "2"})
    assert [rung.name for rung in ladder.rungs] == ["jax 1, flax 1", "jax 1, flax 2", "jax 2, flax 2"]
    assert sorted(days) == [20, 20, 40]
