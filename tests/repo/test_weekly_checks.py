"""The weekly checks: every session runs in some workflow or is for people only; options are those that benches take."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.test_workflows import ROOT, SESSIONS, WORKFLOWS, rehearse

FOR_PEOPLE = {
    *("tests", "format", "lint", "types"),  # parts of check_all
    *("nightly", "quick", "ecosystem", "images"),  # the workflows run their steps one by one with nightjar_ci
    *("baselines", "generate_docs", "lock"),  # they rewrite what is committed
}
OWN_LIBRARIES = {"bench_bisect", "fuzz"}  # cannot be imported without what their sessions install


def list_commands(folder: Path) -> list[list[str]]:
    """What all workflows pass to `nox -s`, first the session."""
    commands = []
    for path in WORKFLOWS:
        (folder / path.stem).mkdir()
        for words in rehearse(path.name, folder / path.stem)[0].commands:
            line = words if "-s" in words else shlex.split((ROOT / ".ci" / "run").read_text().splitlines()[-1])
            if "--list" not in words:
                commands.append(line[line.index("-s") + 1 :])
    return commands


def test_every_session_is_run_by_a_workflow_or_is_for_people(tmp_path: Path) -> None:
    run = {words[0] for words in list_commands(tmp_path)}
    assert {"check_all", "fuzz", "slurm", "journeys", "rehearse", "bench_gate"} <= run
    assert run | FOR_PEOPLE == SESSIONS
    assert not run & FOR_PEOPLE


def find_refused(session: str, words: list[str]) -> str:
    """What the parser of a bench says of these options and of one that no bench has; nothing is measured."""
    module = f"tests.bench.{session.removeprefix('bench_')}"
    command = [sys.executable, "-m", module, *words, "--no-such-option"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()[-1].partition("error: ")[2]


@pytest.mark.slow
def test_the_options_of_benches_are_those_that_they_take(tmp_path: Path) -> None:
    benches = [words for words in list_commands(tmp_path) if words[0].startswith("bench_")]
    assert len(benches) >= 8
    assert {words[0] for words in benches} == {name for name in SESSIONS - FOR_PEOPLE if name.startswith("bench_")}
    for session, *words in benches:
        if session not in OWN_LIBRARIES:
            assert find_refused(session, words[1:]) == "unrecognized arguments: --no-such-option", session


def test_an_option_or_part_that_a_bench_does_not_have_is_noticed() -> None:
    assert find_refused("bench_agents", ["--nonsense"]) == "unrecognized arguments: --nonsense --no-such-option"
    assert "invalid choice: 'nonsense'" in find_refused("bench_gate", ["--only", "nonsense"])
