"""CONTRIBUTING.md: its paths, sessions and options exist, and its targeted test is green."""

import re
import shlex
import subprocess
import sys

import pytest

import noxfile

ROOT = noxfile.ROOT
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
# Not those of a whole package, which takes ten seconds to collect: its path and marker are looked at below.
PYTEST = [words[1:] for words in COMMANDS if words[0] == "pytest" and "tests/ci" not in words]
MADE_BY_NOX = ".nox/"


def test_every_path_of_the_page_exists() -> None:
    words = [word for quoted in re.findall(r"`([^`\n]+)`", PAGE) for word in quoted.split()]
    words += [word for command in COMMANDS for word in command]
    paths = {word for word in words if re.fullmatch(r"[a-z.][\w.-]*(/[\w.-]+)+", word)}
    paths = {path for path in paths if not path.startswith(MADE_BY_NOX) and "NAME" not in path}
    assert {".ci/run", "tests/ci/night/test_matrix.py", "docs/journeys"} <= paths
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_test_that_the_page_names_as_an_example_exists() -> None:
    (example,) = re.findall(r"`(test_\w+)`", PAGE)
    assert f"def {example}(" in "".join(path.read_text() for path in (ROOT / "tests" / "ci").rglob("test_*.py"))


def test_the_markers_of_the_page_are_those_of_the_tests(request: pytest.FixtureRequest) -> None:
    declared = {line.partition(":")[0] for line in request.config.getini("markers")}
    own = {"slow", "weekly", "docker", "browser", "postgres", "slurm", "nsys", "gpu"}
    assert own <= declared
    assert all(f"`{marker}`" in PAGE for marker in own)


@pytest.mark.parametrize("arguments", PYTEST, ids=" ".join)
@pytest.mark.slow
def test_each_pytest_command_of_the_page_selects_tests(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, "-n0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_the_first_test_of_the_page_is_green() -> None:
    words = next(words for words in COMMANDS if words[:4] == ["python3", "noxfile.py", "-s", "tests"] and "--" in words)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words[words.index("--") + 1 :]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
