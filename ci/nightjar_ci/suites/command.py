"""The command of a test job, changed so that it writes a JUnit file, reruns failed tests, or runs one test.

In: a job of kind `test`. Out: the job with other variables or another command. A pytest command needs no extra options:
they travel in `PYTEST_ADDOPTS`, which pytest reads before its command line, so that the user's options win.

Source: pytest:src/_pytest/config/__init__.py (`PYTEST_ADDOPTS`); abseil-py:absl/testing/absltest.py
(`XML_OUTPUT_FILE`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from nightjar_ci.counters.on_path import with_recorder
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.placeholders import escape

JUNIT = "junit.xml"
CACHE = "pytest-cache"  # in the job's folder: the user's own cache stays as it is
LAST_FAILED = f"{CACHE}/v/cache/lastfailed"
_ADDED = "PYTEST_ADDOPTS"
_REPORT = ("-o junit_family=xunit1", "-o junit_logging=all", "-o junit_log_passing_tests=false")
_GO_ON = "--continue-on-collection-errors --maxfail=0"  # one failure hides no other, whatever the project's own options
_AGAIN = ("--last-failed", "--last-failed-no-failures=none")
_SETTINGS = (  # their values may be files or tests, but are not run
    "-c", "-o", "-p", "--rootdir", "--cov", "--cov-config", "--cov-report", "--junitxml", "--junit-xml", "--ignore",
    "--ignore-glob", "--deselect", "--confcutdir", "--basetemp", "--import-mode", "--log-file", "--log-level",
)  # fmt: skip


def find_pytest(command: Sequence[str]) -> int | None:
    """The index of the word that starts pytest, or None.

    >>> find_pytest(["python", "-m", "pytest", "tests"]), find_pytest([".venv/bin/pytest"]), find_pytest(["make"])
    (2, 0, None)
    """
    for index, word in enumerate(command):
        before = ("", *command)[index]
        is_value = before.startswith("-") and before != "-m" and "=" not in before
        if PurePath(word).name in ("pytest", "py.test") and not is_value:
            return index
    return None


def with_report(job: Job) -> Job:
    """The job, made to write a JUnit file into its folder, if its command can."""
    if find_pytest(job.command) is not None:
        options = [f"-o 'cache_dir={{out}}/{CACHE}'", _GO_ON]
        if not any(word.startswith(("--junitxml", "--junit-xml")) for word in job.command):
            options = [f"'--junitxml={{out}}/{JUNIT}'", *_REPORT, *options]
        return with_options(job, options)
    if len(job.command) > 1 and re.fullmatch(r"python[\d.]*", PurePath(job.command[0]).name):
        return replace(job, env={"XML_OUTPUT_FILE": f"{{out}}/{JUNIT}", **job.env})
    return job


def with_last_failed(job: Job) -> Job:
    """The job, made to run only the tests that failed last time, if it runs pytest; else the whole job."""
    if find_pytest(job.command) is None:
        return job
    return with_options(job, _AGAIN)


def select_test(command: Sequence[str], node: str | None, folder: Path) -> tuple[str, ...]:
    """A pytest command for one test alone.

    Args:
        command: it may name files and folders, which the test takes the place of.
        node: pytest's argument to run the test; None: the command stays unchanged.

    >>> select_test(["pytest", "-q", "-n", "2", "tests/nnx"], "tests/nnx/test_a.py::test_b", Path("/no"))
    ('pytest', '-q', '-n', '2', 'tests/nnx/test_a.py::test_b')
    """
    start = find_pytest(command)
    if node is None or start is None:
        return tuple(command)
    if command[0] == "env" and command[1].startswith("--chdir="):  # pytest names tests from its configuration's folder
        cwd = command[1].partition("=")[2]  # of the job
        if not (folder / cwd / node.partition("::")[0]).exists():
            node = os.path.relpath(node, cwd)
        folder /= cwd
    kept, file = list(command[: start + 1]), node.partition("::")[0]
    for before, word in zip(("", *command[start + 1 :]), command[start + 1 :], strict=False):
        is_target = not word.startswith("-") and before not in _SETTINGS
        if re.match(r"-[^=]*$", before) and "::" not in word and not (folder / word).exists():
            is_target = False  # the value of an option
        if not is_target:
            kept.append(word)
        elif not (folder / file).exists():  # the configuration of the tests lies in a folder above them, not here
            above = next((above for above in PurePath(word).parents if (folder / above / file).exists()), PurePath())
            node = str(above / node)
            file = node.partition("::")[0]
    return (*kept, node)


def with_options(job: Job, options: Sequence[str]) -> Job:
    added = " ".join([*options, job.env.get(_ADDED, "")]).strip()
    return replace(job, env={**job.env, _ADDED: added})


_ON_PATH = "time-limit"  # in the job's folder
_BEFORE_PATH = escape('export PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"; exec "$@"')
_PLUGIN = Path(__file__).with_name("time_limit_plugin.py")


def with_time_limit(job: Job, folder: Path) -> Job:
    """The job, made to start no test after its limit, if its matrix has one and it runs pytest.

    Args:
        folder: the job's, which gets the plugin.
    """
    if job.tests is None or job.tests.limit_s is None or find_pytest(job.command) is None:
        return job
    (folder / _ON_PATH).mkdir(parents=True)
    shutil.copyfile(_PLUGIN, folder / _ON_PATH / "nightjar_time_limit.py")
    limited, on_path = with_options(job, ["-p nightjar_time_limit"]), f"{{out}}/{_ON_PATH}"
    variables = {"NIGHTJAR_LIMIT_S": f"{job.tests.limit_s:g}"}
    if job.environment.startswith("image:") and "PYTHONPATH" not in job.env:  # the image's own is known inside alone
        command = ("sh", "-c", _BEFORE_PATH, on_path, *job.command)
        return replace(limited, command=command, env={**limited.env, **variables})
    return with_recorder(limited, on_path, os.environ, variables)
