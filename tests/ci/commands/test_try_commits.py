"""`nightjar-ci try --commits`: two commits, compared by a command that runs on both in turn."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from nightjar_ci.bisect.search.conclude import conclude
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Observation
from nightjar_ci.bisect.state import Probe
from nightjar_ci.cli import main
from nightjar_ci.commands.try_commits import describe, find_settings
from nightjar_ci.errors import ExitCode
from tests.called import call
from tests.ci.local_project import git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    for line in ("print('loss=2')", "print('loss=3')", "raise SystemExit(1)"):
        (tmp_path / "bench.py").write_text(line)
        git(tmp_path, "add", "bench.py")
        git(tmp_path, "commit", "--quiet", "--message", line)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "exit_code", "text"),
    [
        (("HEAD~2..HEAD~1", "--metric", "loss"), 1, "Worse: loss +50.0%"),
        (("HEAD~2..HEAD~1", "--metric", "loss", "--better", "higher"), 0, "Better: loss +50.0%"),
        (
            ("HEAD~2..HEAD~1",),
            0,
            "Passes (failing in 50% of runs or more is ruled out): 0 of 1 runs fail before the change, 0 of 7",
        ),
        (("HEAD~1..",), 1, "Broken: 0 of 4 runs fail before the change, 4 of 4 runs fail after it."),
        (("HEAD~1..HEAD", "--metric", "time"), 4, "Cannot tell: exit code 1: its time is not trusted"),
    ],
)
def test_two_commits_are_compared_by_a_command(
    repository: Path, words: tuple[str, ...], exit_code: int, text: str
) -> None:
    done = call(main, "try", "--json", "--commits", *words, "--", "python", "bench.py", cwd=repository)
    assert done.returncode == exit_code, done.stderr
    assert json.loads(done.stdout)["text"].startswith(text)
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, check=True).stdout
    assert worktrees.count(b"\n") == 1


@pytest.mark.slow
def test_the_tests_of_two_commits_are_compared(repository: Path) -> None:
    for value in (1, 2):
        (repository / "test_lib.py").write_text(f"def test_one():\n    assert {value} == 1\ndef test_two(): pass\n")
        git(repository, "add", "test_lib.py")
        git(repository, "commit", "--quiet", "--message", "tests")
    done = call(main, "try", ".", "--commits", "HEAD~1..HEAD", "--json", cwd=repository)
    assert done.returncode == 1, done.stderr
    trial = json.loads(done.stdout)
    assert ([test["test"] for test in trial["broken"]], trial["n_compared"]) == (["test_lib.test_one"], 2)
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, check=True).stdout
    assert worktrees.count(b"\n") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--", "python", "bench.py"), "a command is run with --commits only"),
        (("--commits", "HEAD", "--", "python", "bench.py"), "'HEAD' is not BASE..HEAD"),
        (("--commits", "HEAD..HEAD", "--", "python", "bench.py"), "names one commit"),
        (("--commits", "HEAD~1..HEAD", "--with", "jax==0.9.0"), "--commits compares commits"),
        (("--metric", "time"), "--metric judges a command"),
    ],
)
def test_what_is_no_comparison_is_refused(repository: Path, words: tuple[str, ...], problem: str) -> None:
    done = call(main, "try", *words, cwd=repository)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("change", "most_wrong"), [(0.0, 2), (0.2, 2)])
def test_answers_are_wrong_as_rarely_as_stated(change: float, most_wrong: int) -> None:
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(60):
        search, probes = Results(2, find_settings("lower")), []
        while (conclusion := conclude(search)) is None:
            before, after = np.exp(0.02 * rng.standard_normal(2)) * (1, 1 + change)
            search.add(Observation(rung=1, value=after, against=0, beside=before))
            record = {"stage": 0, "rung": 1, "name": "new", "outcome": None, "value": after, "beside": before}
            rest = {"state": "completed", "started_at": "", "build_s": 0, "test_s": 1, "folder": ""}
            probes.append(Probe.model_validate({**record, **rest}))
        answer = describe(conclusion, probes, "time")
        expected = (ExitCode.OK, "No change by 5% or more")
        if change:
            expected = (ExitCode.NO, "Worse")
        wrong += (answer.exit_code, answer.text.partition(":")[0]) != expected
    assert wrong <= most_wrong
