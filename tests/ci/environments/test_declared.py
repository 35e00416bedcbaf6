"""What a project declares, wherever it declares it."""

from pathlib import Path

import pytest

from nightjar_ci.environments.declared import read_declared
from nightjar_ci.environments.local_requirements import read_name

SETUP_PY = """
import setuptools
NAME = "old"
TESTS = ["pytest"]
setuptools.setup(
    name=NAME, python_requires=">=3.8", install_requires=["jax"], version=open("v").read(),
    extras_require={"test": TESTS, "doc": read_lines("doc.txt")},
)
"""
SETUP_CFG = """
[metadata]
name = old
[options]
python_requires = >=3.8
install_requires =
    jax
[options.extras_require]
test =
    # what runs them
    pytest
doc =
"""
POETRY = """
[tool.poetry]
name = "old"
[tool.poetry.dependencies]
python = ">=3.8"
jax = "*"
[tool.poetry.extras]
test = ["pytest"]
doc = []
"""


@pytest.mark.parametrize(
    ("file", "text"), [("setup.py", SETUP_PY), ("setup.cfg", SETUP_CFG), ("pyproject.toml", POETRY)]
)
def test_a_project_without_a_project_table_declares_the_same_elsewhere(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    declared = dict(read_declared(tmp_path))
    if file != "pyproject.toml":
        assert declared.pop("requires-python") == ">=3.8"
    expected = {"name": "old", "dependencies": ["jax"], "optional-dependencies": {"test": ["pytest"], "doc": []}}
    assert declared == expected
    assert read_name(tmp_path) == "old"


def test_the_project_table_is_the_only_word_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "new"\n')
    (tmp_path / "setup.py").write_text(SETUP_PY)
    assert read_declared(tmp_path) == {"name": "new"}


@pytest.mark.parametrize("text", ["setup(name=compute())", "setup(**options)", "def broken(:", "raise SystemExit(1)"])
def test_setup_py_is_read_and_never_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "setup.py").write_text(text)
    (tmp_path / "setup.cfg").write_text("[broken")
    assert read_declared(tmp_path) == {}
    with pytest.raises(ValueError, match="does not say its name"):
        read_name(tmp_path)
