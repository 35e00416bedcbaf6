"""Mutants tried in a copy: killed, surviving, without an end; the checkout stays as it is."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.mutants.sites import Mutant, find_mutants
from tests.mutants.workspace import MARKERS, Workspace, WorkspaceError
from tests.places import ROOT

MODULE = "ci/nightjar_sample/rule.py"
SOURCE = b"""LIMIT = 5


def admits(n: int, size: int = 3) -> bool:
    return n < LIMIT and size >= 0


def double(n: float) -> float:
    return n * 2
"""
TEST = """
import subprocess, sys
import pytest
from nightjar_sample.rule import admits

def test_limit():
    assert admits(4) and not admits(5)

def test_in_a_command_with_an_environment_of_its_own():
    code = "from nightjar_sample.rule import double; raise SystemExit(double(2) != 4)"
    assert subprocess.run([sys.executable, "-c", code], env={}).returncode == 0

def test_that_always_fails():
    assert False

@pytest.mark.slow
def test_size():
    assert not admits(4, -1)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "root"
    files = {MODULE: SOURCE.decode(), "ci/nightjar_sample/__init__.py": "", "tests/test_rule.py": TEST}
    files |= {"ci/nightjar_ci/__init__.py": "", "ci/nightjar_ci/pytest_plugin.py": ""}  # pytest loads it everywhere
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return Workspace(root, tmp_path / "work")


def list_mutants() -> list[Mutant]:
    return [mutant for group in find_mutants(MODULE, SOURCE) for mutant in group]


@pytest.mark.git
@pytest.mark.slow
def test_mutants_are_killed_by_the_tests_that_notice_them(workspace: Workspace) -> None:
    tests = ["tests/test_rule.py"]
    chosen = {"4": "survived", "(size < 0)": "killed", "(n / 2)": "killed"}  # the last one by the command
    chosen["(n < LIMIT)"] = "killed"  # by the slow test
    outcomes = {one.after: workspace.try_mutant(one, tests) for one in list_mutants() if one.after in chosen}
    assert outcomes == chosen
    assert workspace.left_out == ["tests/test_rule.py::test_that_always_fails"]
    assert (
        (workspace.copy.parents[1] / "root" / MODULE).read_bytes() == (workspace.copy / MODULE).read_bytes() == SOURCE
    )


def test_the_markers_of_the_project_are_declared_for_a_docstring_alone_too() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {line.partition(":")[0] for line in settings["markers"]} <= set(MARKERS.partition("=")[2].split())


@pytest.mark.git
def test_tests_that_cannot_be_collected_kill_nothing(workspace: Workspace) -> None:
    (workspace.copy / "tests" / "test_broken.py").write_text("import absent_module\n")
    with pytest.raises(WorkspaceError, match=r"cannot be collected without a mutant: .* tests/test_broken\.py"):
        workspace.try_mutant(list_mutants()[0], ["tests/test_broken.py"])


@pytest.mark.git
@pytest.mark.slow
def test_a_mutant_that_never_ends_is_noticed(workspace: Workspace) -> None:
    source = (workspace.copy / MODULE).read_bytes() + b"\n\nwhile not double(1):\n    pass\n"
    (workspace.copy / MODULE).write_bytes(source)
    (mutant,) = [m for group in find_mutants(MODULE, source) for m in group if m.kind == "dropped not"]
    assert workspace.try_mutant(mutant, ["tests/test_rule.py"], limit_s=5.0) == "timed out"
