"""Nights of an adapted program that another commit made slower: pairs with the good night's commit decide."""

import json
from pathlib import Path

import numpy as np
import pytest

from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.cli import main
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.git_tree import read_git
from nightjar_ci.formats.run_record import Sample
from nightjar_ci.formats.verdict import Verdict, read_verdicts
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.folder import import_night
from tests.called import call
from tests.ci.bisect.ladders.test_commits import run_git
from tests.ci.commands.test_nightly_confirm import IDS
from tests.ci.nights import make_night, outcome, record
from tests.machine import asks

CELL = "work-cpu"
MATRIX = f"""schema = "nightjar.matrix/1"
name = "nightly-cpu"
[[job]]
name = "{CELL}"
seeds = [0]
timeout_s = 60
command = ["python", "work.py"]
[job.adapter]
format = "log"
pattern = 'round (?P<round_time>[0-9.]+) s'
sample = [{{ field = "round_time", unit = "s", better = "lower" }}]
"""
WORK = """import os, pathlib, random
factor, chance = float(pathlib.Path("factor").read_text()), random.Random(os.environ["NIGHTJAR_JOB"])
for _ in range(3):
    print(f"round {0.05 * factor * (1 + chance.gauss(0, 0.003)):.6f} s")
"""
POLICIES = 'schema = "nightjar.policies/1"\n[[history]]\nmeasure = "*"\n'


def commit_factor(folder: Path, factor: str) -> str:
    (folder / "factor").write_text(factor)
    run_git(folder, "add", "factor", "work.py", "matrix.toml", "policies.toml", ".gitignore")
    run_git(folder, "commit", "-q", "-m", f"Factor {factor}")
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture
@asks("git")
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose store remembers forty nights of its first commit; the second is checked out."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")
    run_git(folder, "init", "-q", "-b", "main")
    for name, text in {"work.py": WORK, "matrix.toml": MATRIX, "policies.toml": POLICIES, ".gitignore": ""}.items():
        (folder / name).write_text(text)
    commit_factor(folder, "1.0")
    environment = read_machine("current", read_git(folder), find_current(), all_packages=True)
    store, random = open_store(read_settings()), np.random.default_rng(8)
    for night in IDS:
        seconds = 0.05 * float(np.exp(random.normal(0, 0.003)))
        sample = Sample(name="round_time", unit="s", better="lower", values=(seconds, seconds, seconds))
        left = record(0, facts=[], values=[], job=f"{CELL}-s0").model_copy(
            update={"environment": environment, "samples": (sample,), "curves": (), "workload": CELL}
        )
        made = make_night(tmp_path / "earlier" / night, [(outcome(f"{CELL}-s0"), left)], night)
        import_night(store, made)
    store.close()
    return folder


def run_night(tmp_path: Path, number: int = 1) -> tuple[int, Path, Verdict]:
    folder = tmp_path / "nights" / f"2026-11-{number:02d}T0300-0000"
    options = ("--policies", "policies.toml", "--baselines", "baselines", "--out", str(folder))
    done = call(main, "nightly", "matrix.toml", *options)
    (verdict,) = [verdict for verdict in read_verdicts(folder / "verdicts.json").verdicts if verdict.judge == "history"]
    return done.returncode, folder, verdict


@pytest.mark.slow
def test_a_slower_commit_is_confirmed_by_pairs_with_the_good_one(repository: Path, tmp_path: Path) -> None:
    good = run_git(repository, "rev-parse", "HEAD")
    bad = commit_factor(repository, "1.1")
    code, folder, verdict = run_night(tmp_path)
    assert (code, verdict.status) == (1, "regressed")
    assert verdict.policy["reference"] == f"commit:{good}:current"
    assert verdict.effect is not None
    assert verdict.effect.value == pytest.approx(0.1, abs=0.01)
    sides = {
        side: json.loads((folder / "confirm" / CELL / f"01-{side}" / "outcome.json").read_text())["environment"]
        for side in "ab"
    }
    assert sides == {"a": "current", "b": f"commit:{good}:current"}
    assert run_git(repository, "worktree", "list").count("\n") == 0, "the worktree is removed"
    left = [path for path in (tmp_path / "state" / "worktrees").iterdir() if path.is_dir()]
    assert (run_git(repository, "rev-parse", "HEAD"), left) == (bad, [])


def test_a_commit_that_is_not_there_is_named(repository: Path, tmp_path: Path) -> None:
    run_git(repository, "switch", "-q", "--orphan", "alone")
    for name, text in {"work.py": WORK, "matrix.toml": MATRIX, "policies.toml": POLICIES, ".gitignore": ""}.items():
        (repository / name).write_text(text)
    commit_factor(repository, "1.1")
    run_git(repository, "branch", "-D", "main")
    run_git(repository, "reflog", "expire", "--expire=now", "--all")
    run_git(repository, "gc", "-q", "--prune=now")
    code, folder, verdict = run_night(tmp_path)
    assert (code, verdict.status) == (4, "cannot_tell")
    notes = read_verdicts(folder / "verdicts.json").notes
    assert any("git does not have its commit" in note and f"{CELL}/round_time" in note for note in notes)
