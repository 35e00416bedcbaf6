"""Environments and ladders of nightly days, resolved and installed by uv from loopback indexes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.bisect.ladders.packages import Base, make_package_ladder
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.nightly_days import name_days, read_nightly_releases
from nightjar_ci.environments.uv import make_pinned
from nightjar_ci.errors import InputError, NightjarError
from tests.ci.jax_nightly.wheels import fill_day, fill_jax, serve

DATES = ("2026-11-18", "2026-11-19", "2026-11-20")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index with jax 1.0 and 3.0; that of nightly wheels has three days of 2.0."""
    for version in ("1.0", "3.0"):
        fill_jax(tmp_path / "default", version, "f" * 40, PYTHONS)
    for date in DATES:
        fill_day(tmp_path / "nightly", date, pythons=PYTHONS)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    with serve(tmp_path / "default") as default, serve(tmp_path / "nightly") as nightly:
        monkeypatch.setenv("UV_DEFAULT_INDEX", default)
        monkeypatch.setenv("NIGHTJAR_NIGHTLY_INDEX", nightly)
        yield default


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("jax@nightly", "jax==2.0.0.dev20261120"),
        ("jax @ 2026-11-19", "jax==2.0.0.dev20261119"),
        ("locks/a.txt,jax[cuda12]@2026-11-18,flax==1", "locks/a.txt,jax[cuda12]==2.0.0.dev20261118,flax==1"),
        ("myjax@nightly", "myjax@nightly"),
        ("jax @ https://host/jax.whl", "jax @ https://host/jax.whl"),
    ],
)
def test_a_day_is_named_by_its_version_and_nothing_else_is_changed(index: str, text: str, named: str) -> None:
    assert name_days(text) == named


def test_an_absent_day_and_an_index_that_is_down_are_said(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no jax and jaxlib of 2026-01-01: it has 2026-11-18 to 2026-11-20"):
        name_days("jax@2026-01-01")
    monkeypatch.setenv("NIGHTJAR_NIGHTLY_INDEX", "http://127.0.0.1:9/index")
    with pytest.raises(NightjarError) as caught:
        name_days("jax@nightly")
    assert caught.value.exit_code == 3


def test_an_environment_of_a_day_is_installed(index: str, tmp_path: Path) -> None:
    lines = ["jax==2.0.0.dev20261120", "jaxlib==2.0.0.dev20261120"]
    prefix = make_pinned("jax@2026-11-20", lines, {}, tmp_path / "environments", resolved=True)
    show = "from importlib.metadata import version; print(version('jax'), version('jaxlib'))"
    printed = subprocess.run([prefix / "bin/python", "-c", show], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["2.0.0.dev20261120"] * 2


@pytest.mark.parametrize(
    ("old", "rungs"),
    [
        ("2.0.0.dev20261118", ["2.0.0.dev20261118", "2.0.0.dev20261119", "2.0.0.dev20261120"]),
        ("1.0", ["1.0", "2.0.0.dev20261118", "2.0.0.dev20261119", "2.0.0.dev20261120"]),
    ],
)
def test_a_ladder_has_a_rung_for_each_day_also_from_a_release_on(index: str, old: str, rungs: list[str]) -> None:
    base = Base(python=str(find_current().executable))
    ladder = make_package_ladder({"jax": old}, {"jax": rungs[-1]}, base, index, lambda line: None)
    assert ladder.notes == ()
    assert [(rung.pins["jax"], rung.pins["jaxlib"]) for rung in ladder.rungs] == [(rung, rung) for rung in rungs]
    assert [release.version for release in read_nightly_releases("jax")] == rungs[-3:]
