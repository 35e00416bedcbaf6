"""The weekly checks: every session runs in some workflow or is for people only; options are those that benches take."""

import json
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


# One process: the benches share what they import.
PARSE = """
import contextlib, importlib, io, json, sys
for bench, *words in json.loads(sys.argv[1]):
    sys.argv, said = [bench, *words, "--no-such-option"], io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        importlib.import_module(f"tests.bench.{bench.removeprefix('bench_')}.__main__").main()
    print(said.getvalue().splitlines()[-1].partition("error: ")[2])
"""


def find_refused(*commands: list[str]) -> list[str]:
    """What the parsers of benches say of these options and of one that no bench has; nothing is measured."""
    command = [sys.executable, "-c", PARSE, json.dumps(commands)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_the_options_of_benches_are_those_that_they_take(tmp_path: Path) -> None:
    benches = [words for words in list_commands(tmp_path) if words[0].startswith("bench_")]
    assert len(benches) >= 8
    assert {words[0] for words in benches} == {name for name in SESSIONS - FOR_PEOPLE if name.startswith("bench_")}
    ours = [[session, *words[1:]] for session, *words in benches if session not in OWN_LIBRARIES]
    refused = dict(zip(map(" ".join, ours), find_refused(*ours), strict=True))
    assert set(refused.values()) == {"unrecognized arguments: --no-such-option"}, refused


def test_an_option_or_part_that_a_bench_does_not_have_is_noticed() -> None:
    nonsense, part = find_refused(["bench_agents", "--nonsense"], ["bench_gate", "--only", "nonsense"])
    assert nonsense == "unrecognized arguments: --nonsense --no-such-option"
    assert "invalid choice: 'nonsense'" in part
