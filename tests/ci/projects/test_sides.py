"""Which two environments a trial compares."""

from __future__ import annotations

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.projects.sides import choose_sides, find_newer, list_releases
from nightjar_ci.web.package_index import File

PROJECT = "project:.[test],jax"
RELEASES = ["0.9.0", "0.10.1", "0.10.2"]


@pytest.mark.parametrize(
    ("installed", "wanted", "against", "before", "after"),
    [
        (None, None, None, f"{PROJECT},jax==0.10.1", f"{PROJECT},jax==0.10.2"),
        ("0.9.0", None, None, "current", "uv:jax==0.10.2"),
        ("0.10.2", None, None, None, "current"),
        ("0.10.2", "jax==0.9.0", None, "current", "uv:jax==0.9.0"),
        (None, "numpy<2", "jax==0.9.0", f"{PROJECT},jax==0.9.0", f"{PROJECT},numpy<2"),
        ("0.9.0", None, "project:.", "project:.", "uv:jax==0.10.2"),
    ],
)
def test_only_jax_differs_where_that_can_be_had(
    installed: str | None, wanted: str | None, against: str | None, before: str | None, after: str
) -> None:
    sides = choose_sides(PROJECT, installed, RELEASES, wanted=wanted, against=against)
    assert (sides.before, sides.after) == (before, after)


@pytest.mark.parametrize(
    ("releases", "wanted", "message"),
    [([], None, "no release of jax"), (["0.1"], None, "no earlier release"), (RELEASES, "jax=0.9", "jax=0.9")],
)
def test_what_cannot_be_compared_is_refused(releases: list[str], wanted: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_sides(PROJECT, None, releases, wanted=wanted, against=None)


def read(python: str, *releases: tuple[str, str | None]) -> str | None:
    files = [
        File(name=f"jax-{version}-py3-none-any.whl", uploaded=None, yanked=False, requires_python=needs)
        for version, needs in releases
    ]
    newer = find_newer(files, python)
    return None if newer is None else newer.note


def test_a_newer_release_for_another_python_is_said() -> None:
    releases = [("0.9.0", None), ("0.12.0.1", ">=3.12"), ("0.10.2", ">=3.11"), ("0.13.0rc1", ">=3.13")]
    needs = "JAX 0.12.0.1 needs Python 3.12 or newer: with this Python 3.11 the newest is 0.10.2"
    crash = ", whose programs can crash on x86 with arrays of seven or more dimensions (jax-ml/jax#39257)"
    assert read("3.11.7", *releases) == needs + crash
    assert read("3.11.7", ("0.10.1", None), ("0.12.0.1", ">=3.12")) == needs.replace("0.10.2", "0.10.1")
    assert read("3.12.1", *releases) is None
    assert read("3.11.7", ("0.12.0.1", ">=3.12")) is None  # nothing to compare with: an error says so
    assert "needs Python <3.15,>=3.12: " in (read("3.11.7", ("0.9.0", None), ("1.0", ">=3.12,<3.15")) or "")


def test_releases_are_those_that_this_python_can_install() -> None:
    files = [
        File(name=f"jax-{version}-py3-none-any.whl", uploaded=None, yanked=yanked, requires_python=python)
        for version, yanked, python in [
            ("0.10.2", False, ">=3.11"),
            ("0.9.0", False, None),
            ("0.12.0", False, ">=3.12"),
            ("0.10.1", True, ">=3.11"),
            ("0.11.0rc1", False, ">=3.11"),
            ("0.8.0", False, "not a specifier"),
        ]
    ]
    assert list_releases(files, "3.11.7") == ["0.9.0", "0.10.2"]
