"""From nights that `run` and `gate` really wrote to the commit that made one of them red."""

import re
from pathlib import Path

import pytest

from nightjar_ci.bisect.probing.classify import Classification
from nightjar_ci.bisect.probing.classify_by_gate import GateJudge, default_policies
from nightjar_ci.cli import main
from nightjar_ci.formats.outcome import make_outcome
from tests.called import call
from tests.ci.bisect.ladders.test_commits import run_git
from tests.ci.bisect.test_command import answer
from tests.ci.commands.test_nightly_pipeline import WORKLOAD, make_project
from tests.ci.jobs import make_job

FUSIONS = ("fusions = 7", 'fusions = int(open("fusions").read())')
GIT = (
    '"git": None',
    '"git": {"sha": __import__("subprocess").getoutput("git rev-parse HEAD"), "dirty": False}',
)


def nightjar(*arguments: object) -> tuple[int, str]:
    done = call(main, *arguments)
    return done.returncode, done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose workload is compiled to as many fusions as the file `fusions` says; the folder is entered."""
    folder = tmp_path / "project"
    folder.mkdir()
    make_project(folder)
    (folder / "ci").mkdir()
    (folder / "policies.toml").rename(folder / "ci" / "policies.toml")
    (folder / "workload.py").write_text(WORKLOAD.replace(*FUSIONS).replace(*GIT))
    matrix = (folder / "matrix.toml").read_text()
    (folder / "matrix.toml").write_text(matrix.replace(f"{folder}/", "").replace("seeds = [0, 1]", "seeds = [0]"))
    run_git(folder, "init", "-q", "-b", "main")
    monkeypatch.chdir(folder)
    return folder


def commit(folder: Path, number: int, fusions: int) -> None:
    (folder / "fusions").write_text(str(fusions))
    (folder / "log").write_text(str(number))
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-q", "-m", f"Commit {number}")


def make_night() -> tuple[int, Path]:
    """Runs and gates a night; the gate's exit code, and the night's folder."""
    code, night = nightjar("run", "matrix.toml")
    assert code == 0
    return nightjar("gate", night)[0], Path(night)


def test_a_red_night_of_run_and_gate_is_bisected_to_its_commit(project: Path) -> None:
    commit(project, 1, 7)
    code, _ = make_night()
    assert code == 4  # there is no baseline yet: this night is what the next one is compared with
    for number, fusions in ((2, 7), (3, 9), (4, 9)):
        commit(project, number, fusions)
    code, night = make_night()
    assert code == 1
    found = answer("--verdict", night / "verdicts.json")
    assert (found["exit_code"], found["kind"]) == (0, "culprit")
    assert found["culprits"][0].endswith("Commit 3")
    assert re.fullmatch(r"0 of \d+ before, (\d+) of \1 from there on", found["effect"])
    assert "fusion 7 -> 9" in next(probe["why"] for probe in found["probes"] if probe["outcome"] == "bad")


LOGGING = """\
import os
from pathlib import Path

loss, rate = 4.0 + int(os.environ["NIGHTJAR_SEED"]), float(Path("rate").read_text())
for step in range(30):
    loss -= rate * (loss - 1.0)
    print(f"step={step} loss={loss:.5f}")
"""
LOGGING_MATRIX = """\
schema = "nightjar.matrix/1"
name = "mine"

[[job]]
name = "toy"
command = ["python", "train.py"]
seeds = [1, 2]
[job.adapter]
format = "log"
pattern = 'step=(?P<step>\\d+) loss=(?P<loss>\\S+)'
curve = [{ field = "loss" }]
"""


@pytest.mark.usefixtures("state")
@pytest.mark.slow
def test_a_red_night_of_a_program_with_an_adapter_is_bisected_to_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(LOGGING)
    (folder / "mine.toml").write_text(LOGGING_MATRIX)
    run_git(folder, "init", "-q", "-b", "main")
    for number, rate in enumerate((0.1, 0.1, 0.05, 0.05)):
        (folder / "rate").write_text(str(rate))
        (folder / "log").write_text(str(number))
        run_git(folder, "add", "-A")
        run_git(folder, "commit", "-q", "-m", f"Commit {number}")
        if number == 0:
            assert nightjar("baseline", "mine.toml", "--seeds", "1:11")[0] == 0
        if number in (0, 3):
            code, report = nightjar("nightly", "mine.toml")
            assert code == (1 if number else 0)
    found = answer("--verdict", Path(report).parent / "verdicts.json", "toy/loss")
    assert (found["exit_code"], found["kind"]) == (0, "culprit")
    assert found["culprits"][0].endswith("Commit 2")
    (probe, *_) = (probe for probe in found["probes"] if probe["outcome"] == "bad")
    assert "The loss of seed 1 departs" in probe["why"]


def test_a_probe_whose_output_its_adapter_cannot_read_says_so(tmp_path: Path) -> None:
    outcome = make_outcome(make_job("true"), state="invalid", exit_code=0, started_at="x", message="no line matches")
    judge = GateJudge(judges=("convergence",), policies=default_policies())
    assert judge.read(outcome, tmp_path, None) == Classification(answer="cannot_tell", why="no line matches")
