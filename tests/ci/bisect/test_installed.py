"""Commits of a package, each installed in place of the one that is here; nothing is downloaded."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from nightjar_ci.bisect.probing import rung_setup
from nightjar_ci.bisect.result import reproduce
from nightjar_ci.environments.installed import Frozen
from tests.ci.bisect.ladders.test_commits import run_git
from tests.ci.bisect.test_command import answer
from tests.ci.jax_nightly.wheels import serve, write_wheel

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
    (folder / below).mkdir(parents=True)
    run_git(folder, "init", "-q", "-b", "main")
    for number in range(1, 7):
        write_package(folder / below, f"1.{number}", 1 if number < 5 else 3)
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-q", "-m", f"Version 1.{number}")
        run_git(folder, "tag", f"v1.{number}")
    return folder


TEST = (
    "import os, importlib.metadata as m, toy_package as t; print(m.version('toy-package')); "
    "raise SystemExit(t.level > 2 + int(os.environ['NIGHTJAR_SEED']) + (not os.environ['NIGHTJAR_OUT']))"
)


@pytest.mark.parametrize(
    ("environment", "below", "start"),
    [
        ("project:.", ".", "."),
        ("project:my lib", "my lib", "."),
        ("project:.", "my lib", "my lib"),
        ("current", ".", "."),
    ],
)
def test_the_environment_of_a_commit_has_its_package_also_where_it_is_installed_from_the_work_tree(
    environment: str, below: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repository", below)
    for module in (rung_setup, reproduce):
        monkeypatch.setattr(module, "freeze", lambda: Frozen(pins={}, folders={"toy-package": (repository, True)}))
    monkeypatch.chdir(repository / start)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)  # uv
    ends = ["--repo", ".", "--good", "v1.1", "--bad", "v1.6", "--environment", environment]
    opened = f"open({str(Path(os.path.relpath(below, start), 'backend.py'))!r})"
    found = answer(*ends, "--", "python", "-c", f"{opened}; {TEST}")
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


@pytest.mark.slow
def test_a_commit_inside_of_a_release_has_the_companion_that_it_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, index = make_repository(tmp_path / "repository"), tmp_path / "index"
    for number in range(1, 7):  # the third commit moves on to another core, which no other version fits
        core = 1 + (number > 2)
        run_git(repository, "checkout", "-q", f"v1.{number}")
        about = PYPROJECT.format(version=f"1.{number}").replace("[build", f'dependencies = ["core=={core}"]\n[build')
        (repository / "pyproject.toml").write_text(about)
        check = f"import core; assert core.version == {core}, 'the wrong core'\nlevel = {1 if number < 5 else 3}\n"
        (repository / "toy_package.py").write_text(check)
        run_git(repository, "commit", "-qam", f"Core {core} of 1.{number}")
        run_git(repository, "tag", "-f", f"v1.{number}")
        if number in (1, 6):
            write_wheel(
                index, "toy-package", f"1.{number}", "py3-none-any", f"Requires-Dist: core=={core}\n",
                {"toy_package.py": check},
            )  # fmt: skip
    run_git(repository, "checkout", "-q", "-B", "main", "v1.1")
    for number in range(2, 7):
        run_git(repository, "checkout", "-q", f"v1.{number}", "--", ".")
        run_git(repository, "commit", "-qam", f"Version 1.{number}")
    run_git(repository, "tag", "-f", "v1.6")
    for core in (1, 2):
        write_wheel(index, "core", str(core), "py3-none-any", "", {"core.py": f"version = {core}\n"})
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)  # uv
    with serve(index) as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served)
        monkeypatch.setenv("NIGHTJAR_INDEX", served)
        ends = ["--good", "toy-package==1.1", "--bad", "toy-package==1.6", "--repo", f"toy-package={repository}"]
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        for options in (ends[:4], ends):  # down to the release, then to the commit
            found = answer(*options, "--deterministic", "--", "python", "-c", TEST)
            lines = [found[side]["reproduce"] for side in ("before", "after")]
            codes = [subprocess.run(line, shell=True, capture_output=True, check=False).returncode for line in lines]
            assert (found["exit_code"], codes) == (0, [0, 1])
    assert found["culprits"][0].endswith("Version 1.5")
    assert not [probe for probe in found["probes"] if probe["outcome"] == "cannot_tell"]
