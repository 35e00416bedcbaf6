"""A lock with tonight's JAX: what is installed, what is resolved anew, and what is said where nothing fits."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from nightjar_ci.environments import lock as lock_environment
from nightjar_ci.environments.installed import Frozen
from nightjar_ci.environments.lock import (
    find_changes,
    make_locked,
    parse_lock,
    read_pins,
    read_wanted,
    resolve_around,
    split_python,
)
from nightjar_ci.environments.prepare import parse_environment, with_requirements
from nightjar_ci.environments.uv import parse_requirements
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_models.ecosystem.table import CELLS
from noxfile import ROOT
from tests.stand_ins import put_on_path

LOCK = "jax==1.0 \\\n    --hash=sha256:aa\nlib-one==2.0 \\\n    --hash=sha256:bb\n    # via -r lib_one.in\n"
# A uv that keeps what it is given: the requirements on stdin, then `--output-file FILE --constraints FILE`.
KEEP = """cat > {0}/wanted
echo "$@" > {0}/options
while [ "$1" != --output-file ]; do shift; done
cp "$4" {0}/constraints; echo resolved==1 > "$2"
"""
CELL_LOCKS = sorted((ROOT / "docker" / "locks" / "ecosystem").glob("*.in"))


def test_a_lock_file_is_told_from_requirements() -> None:
    assert parse_environment("uv:locks/a.txt,jax==1.0") == ("uv", "locks/a.txt,jax==1.0")
    assert parse_lock("jax==1.0,flax") is None
    with pytest.raises(ValueError, match="not a list of requirements"):
        parse_environment("uv:locks/a.txt,jax=1")


def test_other_versions_are_added_to_any_environment_but_an_image() -> None:
    for environment in ("uv:flax==1", "project:.[test]"):
        assert with_requirements(environment, "jax==2") == f"{environment},jax==2"
    with pytest.raises(ValueError, match="cannot replace packages in the image"):
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
    put_on_path(monkeypatch, folder / "bin", {"uv": f"#!/bin/sh\n{script}"})
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(folder / "bin"))
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")  # it writes where uv would not


def test_packages_of_a_cell_keep_their_version(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_uv(tmp_path, monkeypatch, KEEP.format(tmp_path))
    assert resolve_around(lock, read_pins(LOCK), {"jax": "jax==1.1"}) == ["resolved==1"]
    assert (tmp_path / "constraints").read_text().splitlines() == ["lib-one==2.0", "jax==1.1"]


def test_a_package_that_the_lock_lacks_is_installed_with_it(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(tmp_path, monkeypatch, KEEP.format(tmp_path))
    resolve_around(lock, read_pins(LOCK), {"jax": "jax==1.1", "new": "new==3"})
    wanted = (tmp_path / "wanted").read_text().splitlines()
    assert (wanted[-1], "jax==1.1" in wanted) == ("new==3", False)


def test_what_is_asked_for_wins_over_what_the_cell_itself_wants(tmp_path: Path) -> None:
    source = tmp_path / "locks" / "a.in"
    source.parent.mkdir()
    source.write_text("-r ../smoke.in\n# why\nLib_One[all]<3\nother>=1\n")
    smoke = f"-r {tmp_path / 'smoke.in'}"
    assert read_wanted(source, {"jax": "jax==2"}) == ([smoke, "Lib_One[all]<3", "other>=1"], ["lib-one", "other"])
    changed, unchanged = read_wanted(source, {"lib-one": "lib-one==4.dev1"})
    assert (changed, unchanged) == ([smoke, "lib-one[all]==4.dev1", "other>=1"], ["other"])
    assert find_changes({"jax": "1"}, parse_requirements("jax @ https://x/jax.whl"), {}) == {
        "jax": "jax @ https://x/jax.whl"
    }


@pytest.mark.parametrize("made_with", [True, False])
def test_what_the_workloads_depend_on_is_wanted_where_the_lock_holds_it(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_with: bool
) -> None:
    lock.write_text(LOCK + "    #   nightjar-models (models/pyproject.toml)\n" * made_with)
    fake_uv(tmp_path, monkeypatch, KEEP.format(tmp_path))
    project = Frozen(pins={}, folders={"nightjar-models": (tmp_path / "models", True)})
    monkeypatch.setattr(lock_environment, "freeze", lambda: project)
    pinned = Mock(return_value=tmp_path)
    monkeypatch.setattr(lock_environment, "make_pinned", pinned)
    make_locked(f"{lock},jax==1.1,python==3.12", tmp_path / "cache")
    assert pinned.call_args.kwargs == {"python": "3.12", "resolved": True, "on_line": None}
    assert "--python-version 3.12" in (tmp_path / "options").read_text()
    assert (f"nightjar-models @ file://{tmp_path}/models" in (tmp_path / "wanted").read_text()) is made_with


def test_a_conflict_says_who_wants_what(lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "  x No solution found:\n  > Because lib-one==2.0 depends on jax<1.1 and you require jax==1.1, we conclude\n"
    fake_uv(tmp_path, monkeypatch, f"cat >&2 <<'END'\n{said}END\nexit 1\n")
    monkeypatch.setattr(lock_environment, "read_current_jax", lambda: {"jax": "1.1"})
    with pytest.raises(EnvironmentFailedError) as caught:
        make_locked(str(lock), tmp_path / "cache")
    first = caught.value.message.partition("\n")[0]
    assert first.startswith(f"uv:{lock},jax==1.1: lib-one==2.0 requires jax<1.1: `uv pip compile ")


def test_a_lock_without_its_source_is_told_where_it_is_resolved_anew(lock: Path) -> None:
    lock.with_suffix(".in").unlink()
    with pytest.raises(
        EnvironmentFailedError, match=r"not satisfy jax==1\.1, and its source .*lib_one\.in cannot be read: No such"
    ):
        resolve_around(lock, read_pins(LOCK), {"jax": "jax==1.1"})


def test_a_lock_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailedError, match=r"absent\.txt cannot be read: No such file"):
        make_locked(f"{tmp_path}/absent.txt", tmp_path)


def test_every_cell_has_a_lock_with_its_packages() -> None:
    assert {path.stem for path in CELL_LOCKS} == {cell.lock for cell in CELLS.values()}
    for cell in CELLS.values():
        pins = read_pins((ROOT / "docker" / "locks" / "ecosystem" / f"{cell.lock}.txt").read_text())
        assert {"jax", "typer", "rich", *cell.packages} <= set(pins), cell.name


def test_the_ecosystem_matrix_runs_every_cell_in_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        job for path in (ROOT / "ci" / "matrix").glob("nightly-ecosystem*.toml") for job in expand(read_matrix(path))
    ]
    assert {job.command[2] for job in jobs} == set(CELLS)
    for job in jobs:
        lock, _, others = job.environment.partition(",")
        own = f"uv:docker/locks/ecosystem/{CELLS[job.command[2]].lock}.txt"
        models = job.command[2] == "imagen" and lock == "uv:docker/locks/models.txt"
        assert models or lock == own or ("-gpu" in job.id and lock == "uv:docker/locks/ecosystem/gpu.txt")
        assert not others or job.command[2] in ("levanter", "pennylane")
        assert (ROOT / lock.removeprefix("uv:")).is_file()


def test_an_environment_is_made_from_a_lock_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_environment, "freeze", lambda: Frozen(pins={}, folders={}))
    (tmp_path / "empty.in").write_text("")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    made = make_locked(str(tmp_path / "empty.txt"), tmp_path / "cache")
    assert (made / "bin" / "python").exists()
    assert make_locked(str(tmp_path / "empty.txt"), tmp_path / "cache") == made


def test_a_lock_may_name_another_python() -> None:
    assert split_python(parse_requirements("jax==0.10.1")) == (None, parse_requirements("jax==0.10.1"))
    assert split_python(parse_requirements("python==3.12,jax==0.10.1")) == ("3.12", parse_requirements("jax==0.10.1"))
    lock = 'jax==1 ; python_full_version < "3.12"\njax==2 ; python_full_version >= "3.12"\n'
    assert (read_pins(lock, "3.12"), read_pins(lock, "3.11.9")) == ({"jax": "2"}, {"jax": "1"})
    for text in ("python>=3.12", "python==3.12,python==3.13", "python"):
        with pytest.raises(ValueError, match="is not one version: expected for example"):
            split_python(parse_requirements(text))
