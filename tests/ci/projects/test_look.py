"""What a folder has to run, and in which environment."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.projects.look import look_at
from tests.ci.projects.folders import BENCHMARKS, LIBRARY, SCRIPT, write_folder

TEST = "def test_a(): pass\n"
GROUPS, EXTRAS = "[dependency-groups]\n", "[project.optional-dependencies]\n"
SPEED = BENCHMARKS["benchmarks/test_speed.py"]
UV = '[tool.uv]\ndev-dependencies = ["beartype"]\n'


def test_a_library_has_its_tests_in_an_environment_of_its_own_with_what_they_import(tmp_path: Path) -> None:
    project = look_at(write_folder(tmp_path, LIBRARY, {"docs/requirements.txt": "my-lib\nscipy\n"}))
    assert (project.name, project.tests, project.n_test_files) == ("my_lib", ("tests",), 1)
    assert project.environment == "project:.[test],pytest-cov,pytest-xdist,optax,scipy,jax"
    assert (project.uses_jax, project.python, project.parallel) == (True, True, False)


@pytest.mark.parametrize(
    ("files", "tests"),
    [
        (
            {"pkg/_src/a_test.py": TEST, "pkg/b_test.py": TEST, "pkg/test_util.py": "", "more/test_util.py": ""},
            ("pkg",),
        ),
        ({"pkg/tests/test_a.py": "", "pkg/tests/more/test_b.py": ""}, ("pkg/tests",)),
        ({"src/pkg/a_test.py": TEST}, ("src/pkg",)),
        ({"test_a.py": "", "pytest.ini": "[pytest]\npython_files = check_*.py\n", "check_b.py": TEST}, ("check_b.py",)),
        ({"tests/test_a.py": "", "other/test_b.py": "", "tox.ini": "[pytest]\ntestpaths = ./tests\n"}, ()),
    ],
)
def test_tests_are_where_a_project_has_them(tmp_path: Path, files: Mapping[str, str], tests: tuple[str, ...]) -> None:
    project = look_at(write_folder(tmp_path, files))
    assert project.tests == tests
    assert project.n_test_files > 0


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({"tests/requirements.txt": "pytest\nhypothesis\n"}, "project:.,-r tests/requirements.txt"),
        (
            {"requirements-dev.txt": "-r more.txt\npytest==8 # why\n", "pyproject.toml": f"{EXTRAS}dev = []\n{UV}"},
            "project:.,-r requirements-dev.txt",
        ),
        (
            {
                "pyproject.toml": f'{GROUPS}tests = [{{include-group = "x"}}]\nx = ["pytest"]\n{UV}',
                "tests/requirements.txt": "x",
            },
            "project:.,--group tests",
        ),
        ({"pyproject.toml": f'{EXTRAS}all = ["x"]\ndev = ["pytest"]\n'}, "project:.[dev]"),
        ({"pyproject.toml": f'{GROUPS}all = ["x"]\ndev = ["pytest"]\n'}, "project:.,--group dev"),
        (
            {"setup.py": 'from setuptools import setup\nsetup(extras_require={"testing": ["pytest"]})\n'},
            "project:.[testing]",
        ),
        ({"setup.cfg": "[tool:pytest]\nasyncio_mode = auto\n"}, "project:.,pytest,pytest-asyncio"),
        (
            {
                "setup.py": "from setuptools import *\nsetup(extras_require={'a': [], 'b': ['ogb>1'], 'z': ['ogb']})\n",
                "docs/requirements.txt": "ogb\n",
                "more/requirements.txt": "clrs\n",
                "examples/requirements.txt": "clrs\nogb\n",
                "tests/test_b.py": "import clrs, json, ogb.nodeproppred\n",
            },
            "project:.[b],-r examples/requirements.txt,pytest",
        ),
    ],
)
def test_requirements_of_tests_are_found_anywhere(tmp_path: Path, files: Mapping[str, str], environment: str) -> None:
    assert look_at(write_folder(tmp_path, files, {"tests/test_a.py": ""})).environment == environment


def test_benchmarks_are_not_tests_and_a_script_has_the_requirements_of_its_folder(tmp_path: Path) -> None:
    library = look_at(write_folder(tmp_path / "library", LIBRARY, BENCHMARKS))
    assert (library.benchmarks, library.n_test_files) == (("benchmarks",), 1)
    others = {"lib/train.py": "import scipy\n", **dict.fromkeys(("a/b/train.py", "a/b/c/train.py"), SCRIPT["train.py"])}
    script = look_at(write_folder(tmp_path / "script", SCRIPT, others))
    assert (script.scripts, script.n_test_files) == (("train.py", "a/b/train.py"), 0)
    assert script.environment == "project:.,-r requirements.txt,pytest,jax"


def test_benchmarks_among_tests_are_run_by_their_files(tmp_path: Path) -> None:
    files = {**dict.fromkeys(("tests/test_a.py", "tests/test_bench.py"), TEST), "tests/test_benchmarks.py": SPEED}
    project = look_at(write_folder(tmp_path, files))
    assert (project.tests, project.benchmarks) == (("tests",), ("tests/test_benchmarks.py",))


def test_the_plugins_of_fixtures_are_in_the_environment(tmp_path: Path) -> None:
    tests = {"tests/test_a.py": "def test_a(mocker): pass\ndef test_b(benchmark, tmp_path): pass\n"}
    project = look_at(write_folder(tmp_path, tests, {"tests/conftest.py": "import scipy\n"}))
    assert (project.tests, project.environment) == (("tests",), "project:.,pytest,pytest-benchmark,pytest-mock,scipy")


@pytest.mark.parametrize(
    ("build", "python"),
    [
        ('build-backend = "scikit_build_core.build"\nrequires = ["scikit-build-core"]', False),
        ('requires = ["setuptools", "pybind11>=2"]', False),
        ('requires = ["setuptools", "wheel"]', True),
    ],
)
def test_a_compiled_project_is_not_imported_from_its_folder(tmp_path: Path, build: str, python: bool) -> None:
    files = {"pyproject.toml": f"[build-system]\n{build}\n", "tests/test_a.py": ""}
    assert look_at(write_folder(tmp_path, files)).python is python


@pytest.mark.parametrize(
    ("files", "variables", "message"),
    [
        ({"pyproject.toml": "[["}, [], "pyproject.toml: not valid TOML"),
        ({}, ["JAX PLATFORMS=cpu"], "--env: 'JAX PLATFORMS=cpu' is not NAME=VALUE"),
        ({}, ["JAX_PLATFORMS"], "--env: 'JAX_PLATFORMS' is not NAME=VALUE"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, files: Mapping[str, str], variables: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        look_at(write_folder(tmp_path, files), variables)
    with pytest.raises(InputError, match="is not a folder"):
        look_at(tmp_path / "absent")


def test_a_file_that_is_no_python_costs_nothing(tmp_path: Path) -> None:
    files = {"tests/test_a.py": "def (", "tests/test_b.py": "\0", "tests/conftest.py": "(" * 500}
    assert look_at(write_folder(tmp_path, files)).environment == "project:.,pytest"


@pytest.mark.parametrize(
    ("table", "package"),
    [
        ('[tool.poetry.group.dev.dependencies]\npytest-cases = "^3"\n', "pytest-cases"),
        ('[tool.hatch.envs.hatch-test]\nextra-dependencies = ["hypothesis>=6"]\n', "hypothesis"),
        ('[tool.pdm.dev-dependencies]\ntest = ["chex"]\n', "chex"),
        (UV, "beartype"),
    ],
)
def test_packages_of_tests_are_found_where_other_tools_keep_them(tmp_path: Path, table: str, package: str) -> None:
    files = {"pyproject.toml": f'[project]\nname = "lib"\nversion = "1"\n{table}', "tests/test_a.py": TEST}
    assert package in look_at(write_folder(tmp_path, files)).environment.split(",")
