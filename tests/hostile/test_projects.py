"""Projects that somebody else wrote, as `init` sees them: nothing is written elsewhere, nothing waits or crashes."""

# ruff: noqa: E501 - a document in a line

import json
import os
import tomllib
from pathlib import Path

import pytest

from nightjar_ci.environments.local_requirements import find_locals
from nightjar_ci.environments.project import choose_python, is_package
from nightjar_ci.formats.suite import Case
from nightjar_ci.projects.look import look_at
from nightjar_ci.projects.matrix_text import as_known_failure, render_matrix
from tests.hostile.world import World, check_manners

DOCUMENTS = {
    "tables that are numbers": "project = 1\ntool = 2\nbuild-system = 3\ndependency-groups = 4\n",
    "tables in tables": "[project]\noptional-dependencies = [1]\n[tool]\nuv = 1\npytest = 2\n",
    "names that are numbers": "[project]\nname = 3\ndependencies = { a = 1 }\n[dependency-groups]\nx = 5\n",
    "dependencies of everything": '[project]\nname = "a"\ndependencies = [1, { a = 1 }, "a @ file:///etc", "-r /etc/x"]\n',
    "options of everything": "[tool.pytest.ini_options]\ntestpaths = 7\npython_files = { a = 1 }\naddopts = [1, '-p x']\n",
    "sources of everything": "[tool.uv.sources]\na = 1\nb = [2, { path = 3 }]\n'c\\n[[job]]' = { path = '.' }\n",
    "a group in itself": '[dependency-groups]\na = [{ include-group = "a" }, { include-group = 3 }]\n',
    "names that end a line": '[project]\nname = "a\\"\\n[[job]]"\n[project.optional-dependencies]\n"t\\"\\nest" = ["pytest"]\n',
}


def make_project(folder: Path, document: str) -> None:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_a.py").write_text("import numpy\ndef test_a(): pass\n")
    (folder / "pyproject.toml").write_text(document)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_project_that_is_not_what_it_should_be_is_looked_at(name: str, tmp_path: Path) -> None:
    make_project(tmp_path, DOCUMENTS[name])
    matrix = tomllib.loads(render_matrix(look_at(tmp_path, ())))
    assert [job["kind"] for job in matrix["job"]] == ["test"]
    is_package(tmp_path)
    choose_python(tmp_path)
    assert "a" in find_locals([f"a @ {tmp_path.as_uri()}"])


def test_a_project_whose_python_is_not_a_version_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make()
    for name, python in (("list", "[3]"), ("word", '"banana"')):
        make_project(world.work / name, f'[project]\nname = "a"\nrequires-python = {python}\n')
    for end in world.run_each(["init", "list", "--dry-run"], ["init", "word", "--dry-run"]):
        check_manners(end)
        assert end.code == 2
        assert "requires-python" in end.stderr


def test_pipes_in_a_project_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("pyproject.toml", "setup.cfg", "tox.ini", "tests/test_b.py", "train.py", "requirements.txt"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "tests" / "test_a.py").write_text("def test_a(): pass\n")
    assert look_at(tmp_path, ()).n_test_files >= 1


def test_init_writes_only_into_the_project(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make()
    outside = tmp_path / "outside"
    outside.mkdir()
    for number, link in enumerate(("ci", ".github")):
        make_project(world.work / str(number), '[project]\nname = "a"\n')
        (world.work / str(number) / link).symlink_to(outside)
    ends = world.run_each(["init", "0"], ["init", "1"])
    assert [end.code for end in ends] == [2, 2]
    assert list(outside.iterdir()) == []
    for end in ends:
        check_manners(end)
        assert "leads out" in end.stderr


def test_messages_of_failing_tests_are_strings_in_the_matrix(tmp_path: Path) -> None:
    make_project(tmp_path, '[project]\nname = "a"\n')
    messages = ['"\n[[job]]\nname = "x"', "\U0001f600 \x7f \x1b[2J", "\ud800", "{out}", "\n", '"""', "'''\\"]
    cases = [
        Case.model_validate({"name": f"t{n}", "state": "failed", "message": text}) for n, text in enumerate(messages)
    ]
    matrix = tomllib.loads(render_matrix(look_at(tmp_path, ()), [as_known_failure(case) for case in cases]))
    (job,) = matrix["job"]
    assert [failure["test"] for failure in job["tests"]["known_failure"]] == [f"t{n}" for n in range(len(messages))]
    assert job["tests"]["known_failure"][1]["reason"] == json.loads(json.dumps(messages[1]))
