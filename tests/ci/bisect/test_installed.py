"""Commits of a package, each installed in place of the one that is here; nothing is downloaded."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.ci.bisect.ladders.test_commits import run_git
from tests.ci.bisect.test_command import answer, state

__all__ = ["state"]

PYPROJECT = """
[project]
name = "Toy_Package"
version = "{version}"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import pathlib, zipfile
def make(folder, text):
    version = next(line.split('"')[1] for line in open("pyproject.toml") if line.startswith("version"))
    path = pathlib.Path(folder, f"toy_package-{version}-py3-none-any.whl")
    info = f"toy_package-{version}.dist-info"
    files = {
        "toy_package.pth" if text is None else "toy_package.py": str(pathlib.Path.cwd()) if text is None else text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: toy-package\\nVersion: {version}\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: toy\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, contents in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, contents)
    return path.name
def build_wheel(folder, settings=None, metadata=None): return make(folder, open("toy_package.py").read())
def build_editable(folder, settings=None, metadata=None): return make(folder, None)
"""


def write_package(folder: Path, version: str, level: int) -> None:
    (folder / "pyproject.toml").write_text(PYPROJECT.format(version=version))
    (folder / "backend.py").write_text(BACKEND)
    (folder / "toy_package.py").write_text(f"level = {level}\n")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def make_repository(folder: Path, below: str = ".") -> Path:
    """Six commits of a package in a folder of the repository; from the fifth on its level is 3."""
    (folder / below).mkdir(parents=True)
    run_git(folder, "init", "-q", "-b", "main")
    for number in range(1, 7):
        write_package(folder / below, f"1.{number}", 1 if number < 5 else 3)
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-q", "-m", f"Version 1.{number}")
        run_git(folder, "tag", f"v1.{number}")
    return folder


TEST = (
    "import importlib.metadata as m, toy_package as t; print(m.version('toy-package')); raise SystemExit(t.level > 2)"
)


@pytest.mark.parametrize("below", [".", "my lib"])
def test_the_environment_of_a_project_has_the_project_of_each_commit(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repository", below)
    monkeypatch.chdir(repository)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)  # uv
    ends = ["--repo", ".", "--good", "v1.1", "--bad", "v1.6", "--environment", f"project:{below}"]
    found = answer(*ends, "--", "python", "-c", TEST)
    culprit = run_git(repository, "log", "-1", "--format=%h Version 1.5", "v1.5")
    assert (found["exit_code"], found["culprits"]) == (0, [culprit])
    for probe in found["probes"]:
        log = next(tmp_path.glob(f"state/bisections/*/{probe['folder']}/stdout.log")).read_text()
        assert log.strip() == probe["name"].rpartition(" ")[2]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    codes = [
        subprocess.run(found[side]["reproduce"], shell=True, capture_output=True, check=False).returncode
        for side in ("before", "after")
    ]
    assert codes == [0, 1]
