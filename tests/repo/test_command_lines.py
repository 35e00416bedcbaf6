"""What the three programs share: a version, help and its page, completion, and arguments that they pass on."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer

from tests.places import ROOT
from tests.repo.cli_reference import PAGE, PROGRAMS, find_commands, render_reference

programs = pytest.mark.parametrize("program", PROGRAMS)


def run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program.replace("-", "_"), *arguments]
    environ = {**os.environ, "COLUMNS": "80", "JAX_PLATFORMS": "cpu", **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


@programs
def test_the_version_is_that_of_the_distribution(program: str) -> None:
    done = run(program, "--version")
    assert (done.returncode, done.stdout) == (0, f"{program} {version(program)}\n")


@programs
def test_a_closed_output_changes_no_exit_code_and_is_no_bug(program: str) -> None:
    script = f"{program} --version >&-; echo $?; {program} nonsense 2>&-; echo $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n2\n", "")


@programs
def test_help_cuts_no_summary_on_a_terminal_of_80_columns(program: str) -> None:
    done = run(program, "--help")
    assert done.returncode == 0
    summaries = re.findall(r"^  [a-z]\w+ {2,}(\S.*)$", done.stdout, re.MULTILINE)
    assert len(summaries) >= 5
    assert [summary for summary in summaries if not summary.endswith(".")] == []


@programs
def test_an_example_is_one_line_that_can_be_copied(program: str) -> None:
    for name, command in find_commands(program):
        shown = command.get_help(typer.Context(command, info_name=f"{program} {name}", terminal_width=78))
        example = f"{command.help}\n{command.epilog}".partition("Example: ")[2].partition("\n")[0]
        assert f"Example: {example}\n" in f"{shown}\n", name


@pytest.mark.parametrize("group", ["images", "render"])
def test_the_help_of_a_group_has_whole_summaries_in_sections(group: str) -> None:
    done = run("nightjar-ci", group, "--help")
    assert done.returncode == 0
    assert "..." not in done.stdout.partition("Options:")[2]  # the usage has some
    assert "Others:" not in done.stdout  # every command has its section


@programs
def test_a_shell_is_offered_the_subcommands(program: str) -> None:
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    done = run(program, COMP_WORDS=f"{program} re", COMP_CWORD="1", **{variable: "complete_bash"})
    assert ("report" in done.stdout.split()) is (program != "nightjar-models"), done.stderr


def test_a_shell_is_offered_the_options_of_a_subcommand() -> None:
    variables = {"COMP_WORDS": "nightjar-ci run --ex", "COMP_CWORD": "2", "_NIGHTJAR_CI_COMPLETE": "complete_bash"}
    assert run("nightjar-ci", **variables).stdout.split() == ["--executor"]


def test_a_debug_option_of_the_tested_command_is_left_to_it() -> None:
    done = run("nightjar-ci", "bisect", "--rungs", "/none.txt", "--good", "1", "--bad", "2", "--", "test", "--debug")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_reference_is_that_of_the_code() -> None:
    assert PAGE.read_text() == render_reference(), "run `nox -s generate_docs` (python -m tests.repo.cli_reference)"


def test_every_flag_of_xla_in_the_performance_guide_is_known_to_the_locked_jaxlib() -> None:
    page = (ROOT / "docs" / "performance-guide.md").read_text()
    flags = set(re.findall(r"--xla_\w+=[^\s`\"]+", page))
    assert len(flags) >= 8
    program = "import jax; jax.numpy.ones(1) + 1"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for given, code in ((" ".join(sorted(flags)), True), ("--xla_nonsense=1", False)):
        run = [sys.executable, "-c", program]
        done = subprocess.run(run, env={**environ, "XLA_FLAGS": given}, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is code, done.stderr[-600:]
