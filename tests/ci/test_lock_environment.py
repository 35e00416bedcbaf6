"""A lock with tonight's JAX: what is installed, what is resolved anew, and what is said where nothing fits."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nightjar_ci import lock_environment
from nightjar_ci.environments import parse_environment, with_requirements
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.lock_environment import (
    find_changes,
    make_locked,
    parse_lock,
    read_names,
    read_pins,
    render_conflict,
    resolve_around,
)
from nightjar_ci.matrix import expand, read_matrix
from nightjar_ci.uv_environment import parse_requirements
from nightjar_models.ecosystem.table import CELLS
from noxfile import ROOT

LOCK = "jax==1.0 \\\n    --hash=sha256:aa\nlib-one==2.0 \\\n    --hash=sha256:bb\n    # via -r lib_one.in\n"
CELL_LOCKS = sorted((ROOT / "docker" / "locks" / "ecosystem").glob("*.in"))


def test_a_lock_file_is_told_from_requirements() -> None:
    assert parse_environment("uv:locks/a.txt,jax==1.0") == ("uv", "locks/a.txt,jax==1.0")
    assert parse_lock("jax==1.0,flax") is None
    with pytest.raises(ValueError, match="no list of requirements"):
        parse_environment("uv:locks/a.txt,jax=1")


def test_other_versions_are_added_to_any_environment_but_an_image() -> None:
    assert with_requirements("uv:flax==1", "jax==2") == "uv:flax==1,jax==2"
    with pytest.raises(ValueError, match="are not replaced"):
        with_requirements("image:models:cpu", "jax==2")


def test_a_lock_that_holds_tonights_jax_is_taken_as_it_is() -> None:
    assert find_changes({"jax": "1", "jaxlib": "1"}, (), {"jax": "1", "jaxlib": "1"}) == {}
    assert find_changes({"jax": "1"}, parse_requirements("jax>=1,<2"), {"jax": "1"}) == {}


def test_tonights_jax_wins_over_the_lock_and_what_is_asked_for_over_both() -> None:
    pins = {"jax": "1", "jaxlib": "1", "numpy": "2"}
    tonight = {"jax": "1.1", "jaxlib": "1.1"}
    assert find_changes(pins, (), tonight) == {"jax": "jax==1.1", "jaxlib": "jaxlib==1.1"}
    assert find_changes(pins, parse_requirements("jax==1.2"), tonight) == {"jax": "jax==1.2"}


def test_markers_choose_the_pin_of_this_python() -> None:
    lock = "a==1 ; python_full_version < '3'\na==2 ; python_full_version >= '3' \\\n    --hash=sha256:00\n"
    assert read_pins(lock) == {"a": "2"}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    (tmp_path / "lib_one.in").write_text("-r ../smoke.in\nLib_One<3  # why\n")
    (tmp_path / "lib_one.txt").write_text(LOCK)
    return tmp_path / "lib_one.txt"


def fake_uv(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "uv").write_text("#!/bin/sh\n" + script)
    (folder / "bin" / "uv").chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(folder / "bin"))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def test_the_packages_of_a_cell_keep_their_version_while_the_rest_moves(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_names(lock.with_suffix(".in")) == ["lib-one"]
    keep = f'while [ "$1" != --constraints ]; do shift; done; cp "$2" {tmp_path}/seen; echo resolved==1 > "$4"\n'
    fake_uv(tmp_path, monkeypatch, keep)
    assert resolve_around(lock, LOCK, {"jax": "jax==1.1"}) == ["resolved==1"]
    assert (tmp_path / "seen").read_text().splitlines() == ["lib-one==2.0", "jax==1.1"]


def test_what_cannot_be_resolved_says_who_wants_what(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "  x No solution found:\n  > Because lib-one==2.0 depends on jax<1.1 and you require jax==1.1, we conclude\n"
    fake_uv(tmp_path, monkeypatch, f"cat >&2 <<'END'\n{said}END\nexit 1\n")
    monkeypatch.setattr(lock_environment, "read_tonight", lambda: {"jax": "1.1"})
    with pytest.raises(EnvironmentFailedError) as caught:
        make_locked(str(lock), tmp_path / "cache")
    first = caught.value.message.partition("\n")[0]
    assert first == f"cannot resolve: lib-one==2.0 wants jax<1.1 ({lock} with jax==1.1)."


def test_a_conflict_without_a_known_form_is_still_told() -> None:
    assert render_conflict("no network", Path("a.txt"), {"jax": "jax==2"}).startswith("no versions fit together (a.txt")


def test_a_lock_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailedError, match=r"absent\.txt cannot be read: No such file"):
        make_locked(f"{tmp_path}/absent.txt", tmp_path)


def test_every_cell_has_a_lock_of_its_own_with_its_packages() -> None:
    assert {path.stem for path in CELL_LOCKS} == set(CELLS)
    for path in CELL_LOCKS:
        pins = read_pins(path.with_suffix(".txt").read_text())
        assert {"jax", "typer", "rich", *CELLS[path.stem].packages} <= set(pins), path.name


def test_the_ecosystem_matrix_runs_every_cell_in_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        job for path in (ROOT / "ci" / "matrix").glob("nightly-ecosystem*.toml") for job in expand(read_matrix(path))
    ]
    assert {job.command[2] for job in jobs} == set(CELLS)
    for job in jobs:
        assert job.environment == f"uv:docker/locks/ecosystem/{job.command[2]}.txt"
        assert (ROOT / job.environment.removeprefix("uv:")).is_file()


def test_an_environment_is_made_from_a_lock_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("uv") is None:
        pytest.skip("no uv command on PATH")
    monkeypatch.setattr(lock_environment, "freeze", lambda: lock_environment.Frozen(pins={}, folders={}))
    (tmp_path / "empty.in").write_text("")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    made = make_locked(str(tmp_path / "empty.txt"), tmp_path / "cache")
    assert (made / "bin" / "python").exists()
    assert make_locked(str(tmp_path / "empty.txt"), tmp_path / "cache") == made
