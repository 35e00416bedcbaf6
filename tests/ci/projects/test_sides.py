"""Which two environments a trial compares."""

from datetime import datetime
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.projects.sides import (
    KnownJax,
    choose_sides,
    find_jax_at_release,
    find_known_jax,
    find_newer,
    list_releases,
)
from nightjar_ci.web.package_index import File
from tests.ci.projects.folders import write_folder

PROJECT = "project:.[test],jax"
RELEASES = ["0.9.0", "0.10.1", "0.10.2"]


@pytest.mark.parametrize(
    ("installed", "wanted", "against", "before", "after"),
    [
        (None, None, None, f"{PROJECT},jax==0.10.1", f"{PROJECT},jax==0.10.2"),
        ("0.9.0", None, None, "current", "uv:jax==0.10.2"),
        ("0.10.2", None, None, "uv:jax==0.10.1", "current"),
        ("0.10.2", "jax==0.9.0", None, "current", "uv:jax==0.9.0"),
        (None, "jax[cpu]==0.10.1", None, f"{PROJECT},jax==0.9.0", f"{PROJECT},jax[cpu]==0.10.1"),
        (None, "numpy<2", None, PROJECT, f"{PROJECT},numpy<2"),
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


@pytest.mark.parametrize(
    ("known", "before"),
    [
        (None, "0.11.0"),
        ("0.12.0.1", "0.11.0"),  # a post release of the newest, or the newest itself, is no comparison
        ("0.12.0.2", "0.11.0"),
        ("0.11.0", "0.11.0"),
        ("0.10.2", "0.10.2"),
    ],
)
def test_the_newest_jax_is_compared_with_the_one_that_the_project_knew(known: str | None, before: str) -> None:
    releases = ["0.10.2", "0.11.0", "0.12.0", "0.12.0.1", "0.12.0.2"]
    jax = None if known is None else KnownJax(version=known, why="the newest JAX in uv.lock")
    sides = choose_sides(PROJECT, None, releases, wanted=None, against=None, known=jax)
    assert (sides.before, sides.after) == (f"{PROJECT},jax=={before}", f"{PROJECT},jax==0.12.0.2")
    assert ("uv.lock" in sides.why) == (known in ("0.11.0", "0.10.2"))
    assert sides.with_jax_before("0.9.0").before == f"{PROJECT},jax==0.9.0"


@pytest.mark.parametrize(
    ("files", "known"),
    [
        ({}, None),
        ({"uv.lock": '[[package]]\nname = "jax"\nversion = "0.9.0"\n'}, ("0.9.0", "uv.lock")),
        ({"pylock.toml": '[[packages]]\nname = "jax"\nversion = "0.9.0"\n'}, ("0.9.0", "pylock.toml")),
        ({"uv.lock": "no table", "requirements.txt": "jax[cpu]==0.10.1 # pinned\n"}, ("0.10.1", "requirements.txt")),
        ({".github/workflows/a.yml": "matrix: ['jax==0.9.0', 'jax==0.10.1']"}, ("0.10.1", ".github/workflows/a.yml")),
        ({"requirements.txt": "jax==0.1.0\nmyjax==0.9.0\njaxlib==0.9.0\n"}, None),  # too old for this Python
    ],
)
def test_locks_and_ci_know_a_jax(tmp_path: Path, files: dict[str, str], known: tuple[str, str] | None) -> None:
    found = find_known_jax(write_folder(tmp_path, files), RELEASES)
    assert (found and (found.version, found.why)) == (known and (known[0], f"the newest JAX in {known[1]}"))


@pytest.mark.parametrize(
    ("released", "jax"),
    [("2026-01-31", None), ("2026-02-01", "0.9.0"), ("2026-06-30", "0.10.1"), ("2027-01-01", "0.10.2")],
)
def test_the_last_release_of_a_project_knew_the_jax_of_its_day(released: str, jax: str | None) -> None:
    def upload(name: str, day: str) -> File:
        return File(name=name, uploaded=datetime.fromisoformat(f"{day}T00:00:00+00:00"), yanked=False)

    days = {"0.9.0": "2026-02-01", "0.10.1": "2026-06-30", "0.10.2": "2026-12-31"}
    files = [upload(f"jax-{version}-py3-none-any.whl", day) for version, day in days.items()]
    own = [upload("lib-1.0.tar.gz", released), upload("lib-0.9.tar.gz", "2027-03-01")]  # 0.9 is a later repair
    found = find_jax_at_release("lib", own, files, RELEASES)
    assert (found and found.version) == jax
    assert find_jax_at_release("lib", [], files, RELEASES) is None
    long_ago = [upload("jax-0.9.0.tar.gz", "2020-01-01"), upload("jax-0.10.1.tar.gz", "2027-02-01")]
    assert (find_jax_at_release("lib", own, long_ago, RELEASES) is None) == (released < "2026-02-01")


def test_a_newer_release_for_another_python_is_said() -> None:
    def read(python: str, *releases: tuple[str, str | None]) -> str:
        names = {f"jax-{version}-py3-none-any.whl": needs for version, needs in releases}
        files = [File(name=name, uploaded=None, yanked=False, requires_python=needs) for name, needs in names.items()]
        return find_newer(files, python) or ""

    releases = [("0.9.0", None), ("0.12.0.1", ">=3.12"), ("0.10.2", ">=3.11"), ("0.13.0rc1", ">=3.13")]
    needs = "JAX 0.12.0.1 needs Python >=3.12: with this Python 3.11 the newest is 0.10.2"
    assert read("3.11.7", *releases).startswith(f'{needs}; `uv venv --python ">=3.12"` makes')
    assert read("3.12.1", *releases) == ""
    assert read("3.11.7", ("0.12.0.1", ">=3.12")) == ""  # nothing to compare with: an error says so
    assert "needs Python <3.15,>=3.12: " in read("3.11.7", ("0.9.0", None), ("1.0", ">=3.12,<3.15"))


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
