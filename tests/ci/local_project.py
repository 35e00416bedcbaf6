"""A real small package of this machine, built by a backend of its own, so that no index is asked.

`log_builds` makes a folder below which the file `log/builds` gets a line for every build.
"""

import os
import subprocess
from pathlib import Path

import pytest

from nightjar_ci.environments.prepare import PreparedEnvironment

PYPROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "{name}"
version = "0.1"
dependencies = {dependencies}
"""
BACKEND = """import os, pathlib, tomllib, zipfile

def _write(folder, editable):
    root = pathlib.Path.cwd()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project.get("version", "0.dev0")
    with open(os.environ["UV_TEST_BUILD_LOG"], "a") as log:
        print(name, file=log)
    (root / "build").mkdir(exist_ok=True)
    (root / "build" / "log").write_text(os.urandom(8).hex())
    path = pathlib.Path(folder, f"{name}-{version}-py3-none-any.whl")
    needs = "".join(f"Requires-Dist: {line}\\n" for line in project.get("dependencies", []))
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        if editable:
            wheel.writestr(f"{name}.pth", str(root / "src"))
        else:
            for file in sorted((root / "src").rglob("*.py")):
                wheel.write(file, file.relative_to(root / "src"))
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path.name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    return _write(folder, False)

def build_editable(folder, config_settings=None, metadata_directory=None):
    return _write(folder, True)
"""


def log_builds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "log").mkdir()
    folders = {"NIGHTJAR_STATE_DIR": "state", "UV_CACHE_DIR": "uv", "NIGHTJAR_SANDBOX_WRITES": "log"}
    folders |= {"NIGHTJAR_CACHE_DIR": "cache", "UV_TEST_BUILD_LOG": "log/builds"}
    for variable, name in folders.items():
        monkeypatch.setenv(variable, str(folder / name))
    monkeypatch.setenv("UV_OFFLINE", "1")


def write_project(folder: Path, name: str = "mylib", dependencies: tuple[str, ...] = (), extra: str = "") -> Path:
    (folder / "src" / name).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, dependencies=list(dependencies)) + extra)
    (folder / "backend.py").write_text(BACKEND)
    edit(folder, "old", name)
    return folder


def edit(folder: Path, value: str, name: str = "mylib") -> None:
    """Gives the package another `X`; no other file changes."""
    (folder / "src" / name / "__init__.py").write_text(f"X = {value!r}\n")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_all(folder: Path) -> str:
    """Makes a repository of a folder, where it is none, and commits all that is in it but what builds leave."""
    if not (folder / ".git").exists():
        git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--", ".", ":!build", ":(exclude)__pycache__")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


def imported(environment: PreparedEnvironment, what: str = "mylib.X") -> str:
    program = f"import importlib.util, {what.partition('.')[0]}; print({what})"
    environ = environment.entered(os.environ)
    # Without bytecode: Python takes a module edited within a second, to as many bytes, for the same.
    done = subprocess.run(["python", "-B", "-c", program], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()
