"""The command `nightjar` finds the programs that are installed."""

import os
import subprocess
import sys

import pytest

from tests.places import ROOT


def nightjar(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from nightjar.cli import main; main()", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "meta")}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_it_lists_the_programs_and_the_summary_of_the_one_with_a_packages_name() -> None:
    for words in ((), ("--help",)):
        done = nightjar(*words)
        listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  "))
        assert (done.returncode, {"ci", "models", "profiling"} - listed.keys()) == (0, set())
        assert (listed["doctor"], "workloads" in listed["models"]) == ("comes with nightjar-models", True)


@pytest.mark.parametrize("program", ["ci", "profiling"])
def test_it_runs_a_program_with_its_options_and_exit_code(program: str) -> None:
    done = nightjar(program, "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, f"nightjar-{program}")
    assert nightjar(program, "no-such-command").returncode == 2
    refused = nightjar("nightly")
    assert (refused.returncode, "no program 'nightly': expected one of ci" in refused.stderr) == (2, True)
