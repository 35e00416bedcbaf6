"""`current` is the environment that the user stands in, not the one of nightjar-ci."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest

from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.installed import freeze
from nightjar_ci.environments.prepare import prepare
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.night_folder import read_night
from tests.places import ROOT
from tests.stand_ins import write_programs

# nightjar-ci as a tool has it: in no virtual environment, so that its own Python is not the user's.
PACKAGES = os.pathsep.join([str(ROOT / "ci"), sysconfig.get_path("purelib")])
BASE_PYTHON = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
MATRIX = """schema = "nightjar.matrix/1"
name = "small"
[[job]]
name = "train"
command = ["python", "train.py"]
adapter = { format = "jsonl", file = "loss.jsonl", curve = [{ field = "loss" }] }
"""
TRAIN = """import os, sys, onlyhere
print(sys.executable)
open(os.environ["NIGHTJAR_OUT"] + "/loss.jsonl", "w").write('{"step": 0, "loss": 1.0}')
"""


def make_environment(folder: Path) -> Path:
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "onlyhere.py").write_text("")
    info = packages / "onlyhere-7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onlyhere\nVersion: 7.0\n")
    return folder


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that is not nightjar's own; nothing says that the user stands in it."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return make_environment(tmp_path / "theirs")


@pytest.fixture
def no_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)


def variables(theirs: Path, how: str) -> dict[str, str]:
    rest = {name: value for name, value in os.environ.items() if name != "PATH"}
    if how == "PATH":
        return {**rest, "PATH": f"{theirs}/bin:/usr/bin:/bin"}
    return {**rest, how: str(theirs), "PATH": os.environ["PATH"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["VIRTUAL_ENV", "CONDA_PREFIX", "PATH"])
def test_a_job_runs_where_the_user_stands(theirs: Path, tmp_path: Path, how: str) -> None:
    (tmp_path / "m.toml").write_text(MATRIX)
    (tmp_path / "train.py").write_text(TRAIN)
    command = [BASE_PYTHON, "-m", "nightjar_ci", "run", "m.toml"]
    environ = {**variables(theirs, how), "PYTHONPATH": PACKAGES}
    planned = subprocess.run([*command, "--dry-run"], env=environ, capture_output=True, text=True, check=True)
    assert planned.stdout.startswith(f"current is {theirs}/bin/python (Python ")
    assert f"found by {how})" in planned.stdout.splitlines()[0]
    as_json = subprocess.run([*command, "--dry-run", "--json"], env=environ, capture_output=True, text=True, check=True)
    assert f"{theirs}/bin/python" in json.loads(as_json.stdout)[0]["environment"]
    done = subprocess.run([*command, "--out", "night"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "night/jobs/train/stdout.log").read_text() == f"{theirs}/bin/python\n"
    assert read_night(tmp_path / "night").jobs[0].python == f"{theirs}/bin/python"


@pytest.mark.usefixtures("no_own")
@pytest.mark.parametrize("how", ["VIRTUAL_ENV", "CONDA_PREFIX", "PATH"])
def test_other_versions_change_the_users_environment(theirs: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    for name, value in variables(theirs, how).items():
        monkeypatch.setenv(name, value)
    assert freeze().pins["onlyhere"] == "onlyhere==7.0"
    assert "nightjar-ci" not in freeze().folders


def test_a_command_called_by_its_path_means_the_environment_that_it_lies_in(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{theirs}/bin")
    found = find_current()
    assert found.prefix == Path(sys.prefix)
    assert found.found_by == "the environment of nightjar-ci"


@pytest.mark.usefixtures("no_own")
def test_an_active_environment_wins_over_conda_and_conda_over_path(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda, last = make_environment(tmp_path / "conda"), make_environment(tmp_path / "last")
    for name, value in (("VIRTUAL_ENV", theirs), ("CONDA_PREFIX", conda), ("PATH", last / "bin")):
        monkeypatch.setenv(name, str(value))
    assert find_current().prefix == theirs
    monkeypatch.delenv("VIRTUAL_ENV")
    assert find_current().prefix == conda
    (conda / "bin" / "python").unlink()  # an environment of tools alone
    assert find_current().prefix == last


def test_an_active_environment_that_is_gone_is_told(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(theirs / "bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(theirs))
    with pytest.raises(EnvironmentFailedError, match="has no bin/python") as caught:
        find_current()
    assert "unset VIRTUAL_ENV" in (caught.value.hint or "")


def test_no_python_at_all_ends_with_a_hint(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MATRIX)
    environ = {**variables(theirs, "PATH"), "PATH": str(tmp_path), "PYTHONPATH": PACKAGES}
    command = [BASE_PYTHON, "-m", "nightjar_ci", "run", "m.toml"]
    done = subprocess.run([*command, "--dry-run"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no python is on PATH" in done.stderr
    assert "activate the environment" in done.stderr
    ran = subprocess.run([*command, "--out", "night"], env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    outcome = read_night(tmp_path / "night").jobs[0]
    assert outcome.state == "not_started"
    assert "no python is on PATH" in (outcome.message or "")


@pytest.mark.usefixtures("no_own")
def test_a_python_that_does_not_start_is_told(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_programs(tmp_path / "broken", {"python": "#!/bin/sh\necho no such version >&2\nexit 127\n"})
    monkeypatch.setenv("PATH", f"{tmp_path}/broken:/usr/bin:/bin")
    with pytest.raises(EnvironmentFailedError, match=r"broken/python \(found by PATH\) fails: no such version"):
        find_current()


@pytest.mark.parametrize("receipt", ["uv-receipt.toml", "pipx_metadata.json"])
def test_a_tools_environment_is_not_taken(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receipt: str
) -> None:
    tool = make_environment(tmp_path / "tool")
    (tool / receipt).write_text("")
    monkeypatch.setattr(sys, "prefix", str(tool))
    monkeypatch.setenv("PATH", f"{tool}/bin:{theirs}/bin")
    assert find_current().prefix == theirs
    assert prepare("current").entered({"PATH": f"{tool}/bin"})["PATH"] == f"{theirs}/bin:{tool}/bin"


@pytest.mark.usefixtures("no_own")
def test_a_python_of_the_system_leaves_the_path_as_it_is(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no Python of the system")
    monkeypatch.setenv("PATH", "/usr/local/cuda/bin:/usr/bin")
    assert (
        prepare("current").entered({"PATH": "/usr/local/cuda/bin:/usr/bin"})["PATH"] == "/usr/local/cuda/bin:/usr/bin"
    )


def test_what_conda_installed_counts_by_its_version(tmp_path: Path) -> None:
    info = tmp_path / "lib-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lib\nVersion: 2.0\n")
    (info / "direct_url.json").write_text('{"url": "file:///home/conda/feedstock_root/lib", "dir_info": {}}')
    assert freeze(distributions(path=[str(tmp_path)])).folders.keys() == {"lib"}
    (info / "INSTALLER").write_text("conda\n")
    assert freeze(distributions(path=[str(tmp_path)])).pins == {"lib": "lib==2.0"}


def test_what_linux_installed_for_itself_is_left_out() -> None:
    debian = list(distributions(path=["/usr/lib/python3/dist-packages"]))
    if not debian:
        pytest.skip("no Debian packages of Python")
    assert freeze(debian).pins == {}
