"""A copy of the checkout in which a mutant is planted and tests run; the checkout itself is never written to.

In: a mutant and test files. Out: whether a test failed. The copy has an environment of its own whose Python imports the
packages from the copy, so that a command which a test starts runs the mutant, too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from tests.mutants.nearest import PACKAGES
from tests.mutants.sites import Mutant

FIRST_FILES = 3  # of the nearest tests are tried before the others are collected: most mutants die of them
QUICK_S = 0.5  # of a test
LEFT_OUT = ("slow", "buildx", "docker", "podman", "postgres", "slurm", "nsys", "gpu")  # they take minutes a mutant
PYTEST = ("-q", "-p", "no:cacheprovider", "-m", " and ".join(f"not {mark}" for mark in LEFT_OUT), "--hypothesis-seed=0")
Outcome = Literal["killed", "timed out", "survived", "no tests"]


class WorkspaceError(Exception):
    """Tests that could not be run at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The tests without a mutant.

    Attributes:
        failed: node ids of the tests that fail; they say nothing about a mutant.
        seconds: how long each of the others takes, by its node id.
    """

    failed: tuple[str, ...]
    seconds: dict[str, float]

    def order(self, files: Sequence[str]) -> tuple[list[str], list[str]]:
        """The tests of these files in two groups: the quick ones of the first files, then all others, quick ones first.

        Most mutants die of the first group, so that the other files need not be collected.
        """
        ranks = {file: rank for rank, file in enumerate(files)}
        tests = [test for test in self.seconds if test.partition("::")[0] in ranks]
        tests.sort(key=lambda test: (self.seconds[test] > QUICK_S, ranks[test.partition("::")[0]], self.seconds[test]))
        nearest = set(files[:FIRST_FILES])
        first = [test for test in tests if self.seconds[test] <= QUICK_S and test.partition("::")[0] in nearest]
        return first, [test for test in tests if test not in set(first)]

    def limit_s(self, tests: Sequence[str]) -> float:
        """How long these tests may take with a mutant in them."""
        return 60.0 + 4.0 * sum(self.seconds[test] for test in tests)


class Workspace:
    """A copy of the checkout and its environment, both below `folder`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.copy = folder / "checkout"
        self.environment = folder / "environment"
        self.temporary = folder / "tmp"
        self._times = count(1_000_000_000)
        for name in list_files(root):
            target = self.copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
        self._make_environment()

    def _make_environment(self) -> None:
        venv.create(self.environment, symlinks=True)
        site = self.environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        libraries = [path for path in sys.path if path.endswith("site-packages")]
        paths = [*(str(self.copy / package) for package in PACKAGES), *libraries]
        (site / "mutants.pth").write_text("\n".join(paths) + "\n")
        for program in Path(sysconfig.get_path("scripts")).iterdir():
            target = self.environment / "bin" / program.name
            if target.exists():
                continue
            if program.name.startswith("nightjar-"):
                text = program.read_text().partition("\n")[2]
                target.write_text(f"#!{self.environment}/bin/python\n{text}")
                target.chmod(0o755)
            else:
                target.symlink_to(program)

    def measure(self, tests: Sequence[str], jobs: int) -> Baseline:
        """Runs tests without a mutant.

        Raises:
            WorkspaceError: pytest itself failed.
        """
        report = self.copy / "baseline.xml"
        options = ("-n", str(jobs), f"--junitxml={report}", "-o", "junit_family=xunit1", "-rfE")
        code, output = self._run([*options, *tests], limit_s=3600.0)
        if code not in (0, 1) or not report.is_file():
            raise WorkspaceError(f"pytest ended with {code} without a mutant:\n{output[-2000:]}")
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE)
        seconds = {
            f"{case.get('file')}::{case.get('name')}": float(case.get("time", 0.0))
            for case in ElementTree.parse(report).iter("testcase")
            if case.find("skipped") is None
        }
        passed = [test for test in seconds if test not in failed]
        return Baseline(failed=tuple(failed), seconds={test: seconds[test] for test in self._keep_named(passed)})

    def _keep_named(self, tests: Sequence[str]) -> list[str]:
        """The tests that pytest finds again by these node ids; it cannot where an id holds what a report does not."""
        _, output = self._run(["--collect-only", self._write_names(tests)], limit_s=3600.0)
        lost = set(re.findall(r"^ERROR: not found: (?:.*?/checkout/)?(.*)$", output, re.MULTILINE))
        return [test for test in tests if test not in lost]

    def _write_names(self, tests: Sequence[str]) -> str:
        """An argument that stands for so many tests that a command line does not hold them."""
        path = self.copy / "tests.txt"
        path.write_text("\n".join(tests) + "\n")
        return f"@{path}"

    def try_mutant(self, mutant: Mutant, files: Sequence[str], baseline: Baseline) -> Outcome:
        """Plants a mutant, runs its nearest tests up to the first that fails, and takes the mutant out again."""
        groups = [group for group in baseline.order(files) if group]
        if not groups:
            return "no tests"
        path = self.copy / mutant.path
        source = path.read_bytes()
        self._write(path, mutant.plant(source))
        try:
            for group in groups:
                code, _ = self._run(["-x", self._write_names(group)], limit_s=baseline.limit_s(group))
                if code is None:
                    return "timed out"
                if code:
                    return "killed"
        finally:
            self._write(path, source)
        return "survived"

    def _write(self, path: Path, source: bytes) -> None:
        """Writes a module with a time of its own, by which Python knows that it has to compile it again."""
        path.write_bytes(source)
        moment = next(self._times)
        os.utime(path, (moment, moment))

    def _run(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Runs pytest in the copy; returns its exit code, None at the limit, and its output."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        programs = self.environment / "bin"
        environ = {
            **os.environ,
            "VIRTUAL_ENV": str(self.environment),
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "TMPDIR": str(self.temporary),
        }
        environ.pop("PYTHONPATH", None)
        command = [str(programs / "python"), "-m", "pytest", *PYTEST, *arguments]
        process = subprocess.Popen(
            command, cwd=self.copy, env=environ, text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with process:
            try:
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return None, ""
        return process.returncode, output


def list_files(root: Path) -> list[str]:
    """The files of a checkout that Git does not ignore.

    Raises:
        WorkspaceError: this is not a checkout, or there is no Git.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkspaceError(f"{root} is not a Git checkout: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name and (root / name).is_file()]
