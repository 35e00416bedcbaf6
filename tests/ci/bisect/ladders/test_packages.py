"""Ladders of several packages: which day's index each of their environments is resolved with."""

from datetime import datetime
from typing import Any

import pytest

from nightjar_ci.bisect.ladders import packages
from nightjar_ci.environments.lock import read_pins
from tests.ci.bisect.test_ladders import START, ladder_of, releases


def test_an_environment_is_never_older_than_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"jax": releases(v1=20, v2=40), "flax": releases(v1=5, v2=10)}  # flax 2 is older than jax 1
    monkeypatch.setattr(packages, "read_releases", lambda name, url: known[name])
    days: list[float] = []

    def resolve(lines: list[str], *, before: datetime, **_: Any) -> dict[str, str]:
        days.append((before - START).days - 1)
        return read_pins("\n".join(lines))

    monkeypatch.setattr(packages, "resolve", resolve)
    ladder = ladder_of({"jax": "1", "flax": "1"}, {"jax": "2", "flax": "2"})
    assert [rung.name for rung in ladder.rungs] == ["jax 1, flax 1", "jax 1, flax 2", "jax 2, flax 2"]
    assert sorted(days) == [20, 20, 40]


def test_python_moves_last_and_packages_are_resolved_for_the_python_of_their_rung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "read_releases", lambda name, url: {"gym": releases(v1=0, v2=10)}[name])
    resolved: list[tuple[str | None, tuple[str, ...]]] = []

    def resolve(lines: list[str], *, python: str | None, **_: Any) -> dict[str, str]:
        resolved.append((python, tuple(lines)))
        return read_pins("\n".join(lines))

    monkeypatch.setattr(packages, "resolve", resolve)
    ladder = ladder_of({"gym": "1", "python": "3.11.7"}, {"gym": "2", "python": "3.12.1"})
    assert [rung.name for rung in ladder.rungs] == [
        "gym 1, python 3.11.7",
        "gym 2, python 3.11.7",
        "gym 2, python 3.12.1",
    ]
    assert sorted(resolved) == [("3.11.7", ("gym==1",)), ("3.11.7", ("gym==2",)), ("3.12.1", ("gym==2",))]
    assert [(rung.python, rung.lock) for rung in ladder.rungs][-1] == ("3.12.1", ("gym==2",))


def test_python_alone_is_a_ladder_of_two_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "resolve", lambda lines, **_: read_pins("\n".join(lines)))
    ladder = ladder_of({"python": "3.11"}, {"python": "3.12"})
    assert [rung.name for rung in ladder.rungs] == ["python 3.11", "python 3.12"]
