"""Environments of a project alone: what they are spelt like, and that they have the project as it is now."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nightjar_ci.environments import project
from nightjar_ci.environments.prepare import parse_environment, prepare
from nightjar_ci.environments.project import choose_python, is_package, move_project, parse_project, resolve_project
from nightjar_ci.errors import EnvironmentFailedError
from tests.ci.jax_nightly.wheels import serve, write_wheel
from tests.ci.local_project import edit, imported, log_builds, write_project

pytestmark = pytest.mark.sandbox


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    log_builds(tmp_path, monkeypatch)
    return tmp_path


def test_extras_groups_and_files_are_told_from_requirements() -> None:
    parsed = parse_project("../my lib[test, io],--group dev,-r ci/tests.txt,jax>=0.9,<0.10,numpy")
    assert (str(parsed.folder), parsed.extras, parsed.groups) == ("../my lib", "[test, io]", ("dev",))
    assert [str(path) for path in parsed.files] == ["ci/tests.txt"]
    assert parsed.requirements == ("jax>=0.9,<0.10", "numpy")


def test_a_project_is_moved_to_another_checkout_of_its_repository(here: Path) -> None:
    text = "project:lib[test,io],--group dev,-r ci/tests.txt,jax>=0.9"
    moved = "project:/tree/lib[test,io],--group dev,-r /tree/ci/tests.txt,jax>=0.9"
    assert move_project(text, here, Path("/tree")) == moved
    assert move_project("project:../other", here, Path("/tree")) == "project:../other"  # not of this repository


@pytest.mark.parametrize("text", ["project:", "project:.[test", "project:.,jax=0.9", "project:.,--groups dev"])
def test_what_is_misspelt_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expected"):
        parse_environment(text)


def test_the_project_is_installed_with_its_groups_as_it_is_now(here: Path) -> None:
    write_project(here / "helper", "helper")
    mylib = write_project(here / "mylib", extra=f'[dependency-groups]\ntest = ["helper @ file://{here}/helper"]\n')
    environment = "project:mylib,--group test"
    first = prepare(environment)
    assert (imported(first), imported(first, "helper.X")) == ("old", "old")
    assert {package.name for package in first.local_packages} == {"mylib", "helper"}
    again = prepare(environment)
    assert again.bin_dir == first.bin_dir
    edit(mylib, "new")
    assert imported(prepare(environment)) == "new"


def test_a_package_of_an_index_that_the_project_names_is_that_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in ("usual", "own"):
        for name in ("common", "special"):
            write_wheel(here / index, name, "1", "py3-none-any", "", {f"{name}.py": f"index = {index!r}\n"})
    monkeypatch.delenv("UV_OFFLINE")
    with serve(here / "usual") as usual, serve(here / "own") as own:
        monkeypatch.setenv("UV_DEFAULT_INDEX", usual.replace("//", "//me:secret@"))
        source = '[tool.uv.sources]\nspecial = {index = "own"}\n[[tool.uv.index]]\nname = "own"\nexplicit = true\n'
        write_project(here / "mylib", dependencies=("common", "special"), extra=f'{source}url = "{own}"\n')
        assert "common==1" in resolve_project("mylib")[0]
        made = prepare("project:mylib")
        assert [imported(made, f"{name}.index") for name in ("common", "special")] == ["usual", "own"]
        (here / "tests.txt").write_text(f"--extra-index-url {own}\ncommon\n")
        assert imported(prepare("project:mylib,-r tests.txt"), "common.index") == "own"


def test_a_folder_that_is_not_a_package_gives_its_requirements_alone(here: Path) -> None:
    (here / "train.py").touch()
    assert not is_package(here)
    (here / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "1"\n[tool.uv]\npackage = false\n')
    assert not is_package(here)
    assert parse_project(".,jax").render_inputs() == ["jax"]
    helpers = [f"{name} @ {write_project(here / name, name).as_uri()}" for name in ("helper", "other")]
    needs = f'dependencies = ["{helpers[0]}"]\noptional-dependencies.test = ["{helpers[1]}"]\n'
    (here / "pyproject.toml").write_text(f'[project]\nname = "a"\nversion = "1"\n{needs}[tool.uv]\npackage = false\n')
    assert resolve_project(".[test]")[0] == helpers
    (here / "pyproject.toml").write_text('[tool.poetry.dependencies]\npython = "^3.11"\nidna = "^3"\n')
    assert parse_project(".,jax").render_inputs() == ["idna", "jax"]
    with pytest.raises(EnvironmentFailedError, match="absent is not a folder"):
        prepare("project:absent")


def test_a_project_for_another_python_is_made_with_that(here: Path) -> None:
    (here / "pyproject.toml").write_text('[project]\nname = "a"\nversion = "1"\nrequires-python = ">=3.99"\n')
    assert choose_python(here) == ">=3.99"
    with pytest.raises(EnvironmentFailedError, match=r"project:\.: the environment cannot be made"):
        prepare("project:.")


@pytest.mark.parametrize(
    ("version", "required", "chosen"),
    [
        ("3.14.0rc1+", ">=3.12", None),
        ("3.12.0", ">=3.12", None),
        ("3.11.9", ">=3.12", ">=3.12"),
        ("3.11.9", None, None),
    ],
)
def test_the_python_that_stands_here_is_taken_where_the_project_allows_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, version: str, required: str | None, chosen: str | None
) -> None:
    monkeypatch.setattr(project, "find_current", lambda: SimpleNamespace(version=version))
    line = "" if required is None else f'requires-python = "{required}"\n'
    (here / "pyproject.toml").write_text(f'[project]\nname = "a"\nversion = "1"\n{line}')
    assert choose_python(here) == chosen
