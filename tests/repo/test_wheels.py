"""The wheels as a stranger has them: in an environment and a folder that know nothing of this checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.places import ROOT

PACKAGES = ("ci", "models", "profiling", "meta")
PROGRAM = """import random, sys
noise, loss = random.Random(int(sys.argv[1])), 4.0
for step in range(30):
    loss = loss * 0.9 + noise.gauss(0, 0.01)
    print(f"step={step} loss={loss:.5f}")
"""
MATRIX = r"""schema = "nightjar.matrix/1"
name = "mine"
[[job]]
name = "toy"
command = ["python", "train.py", "{seed}"]
seeds = [0]
[job.adapter]
format = "log"
pattern = 'step=(?P<step>\d+) loss=(?P<loss>\S+)'
curve = [{ field = "loss", unit = "nats" }]
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("dist")
    for package in PACKAGES:
        command = ["uv", "build", "--quiet", "--offline", "--wheel", "--no-build-isolation", "--out-dir", str(out)]
        environ = {**os.environ, "VIRTUAL_ENV": sys.prefix}
        subprocess.run([*command, str(ROOT / package)], env=environ, check=True)
    names = {path.name.partition("-")[0].removeprefix("nightjar_"): path for path in out.glob("*.whl")}
    return {"meta" if name == "nightjar" else name: path for name, path in names.items()}


@pytest.fixture
def programs(wheels: dict[str, Path], tmp_path: Path) -> Path:
    environment = tmp_path / "environment"
    quiet = ["uv", "--quiet", "--offline"]
    subprocess.run([*quiet, "venv", "--python", sys.executable, str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [*quiet, "pip", "install", "--python", python, "--no-deps", *map(str, wheels.values())]
    subprocess.run(install, check=True)
    (folder,) = environment.glob("lib/python*/site-packages")
    (folder / "theirs.pth").write_text("".join(f"{path}\n" for path in sys.path if "site-packages" in path))
    return environment / "bin"


def run(programs: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.slow
def test_a_wheel_says_what_it_is_and_under_which_licence(wheels: dict[str, Path], package: str) -> None:
    with zipfile.ZipFile(wheels[package]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("/py.typed") for name in names)
    assert metadata.count("Classifier: ") >= 5
    assert "Description-Content-Type: text/markdown" in metadata


@pytest.mark.slow
def test_a_program_is_gated_in_an_empty_folder(programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "mine.toml").write_text(MATRIX)
    where = run(programs, folder, "python", "-c", "import nightjar_ci; print(nightjar_ci.__file__)")
    assert where.stdout.startswith(str(programs.parent))
    made = run(programs, folder, "nightjar-ci", "baseline", "mine.toml", "--seeds", "0:10")
    assert (made.returncode, made.stdout) == (0, "ci/nightjar/baselines/toy/convergence.json\n"), made.stderr
    night = run(programs, folder, "nightjar-ci", "nightly", "mine.toml")
    assert night.returncode == 0, night.stderr
    assert night.stderr.count("built-in") == 1
    report = Path(night.stdout.splitlines()[-1])
    for command in ("gate", "report"):
        assert run(programs, folder, "nightjar-ci", command, str(report.parent)).returncode == 0
    listed = run(programs, folder, "nightjar", "--help")
    assert "\n  ci " in listed.stdout


@pytest.mark.slow
def test_a_project_gets_its_nightly(programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "test_a.py").write_text("def test_a(): pass\n")
    done = run(programs, folder, "nightjar-ci", "init")
    assert done.stdout.split() == ["ci/nightjar/matrix.toml", ".github/workflows/nightjar.yml"]
    assert run(programs, folder, "nightjar-ci", "run", "ci/nightjar/matrix.toml", "--dry-run").returncode == 0
