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


def test_it_lists_the_programs() -> None:
    for words in ((), ("--help",)):
        done = nightjar(*words)
        assert done.returncode == 0
        assert all(f"\n  {name} " in done.stdout for name in ("ci", "models", "profiling"))


def test_only_the_program_of_a_packages_name_has_its_summary() -> None:
    listed = dict(line.split(maxsplit=1) for line in nightjar().stdout.splitlines() if line.startswith("  "))
    assert listed["doctor"] == "comes with nightjar-models"
    assert "workloads" in listed["models"]


@pytest.mark.parametrize("program", ["ci", "profiling"])
def test_it_runs_a_program_with_its_options_and_exit_code(program: str) -> None:
    done = nightjar(program, "--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, f"nightjar-{program}")
    assert nightjar(program, "no-such-command").returncode == 2


def test_an_unknown_program_is_refused() -> None:
    done = nightjar("nightly")
    assert done.returncode == 2
    assert "no program 'nightly': expected one of ci" in done.stderr
