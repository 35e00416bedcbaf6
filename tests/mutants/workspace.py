"""A copy of the checkout in which a mutant is planted and tests run; the checkout itself is never written to.

In: a mutant and test files. Out: whether a test failed. The copy has an environment of its own whose Python imports the
packages from the copy, so that a command which a test starts runs the mutant, too.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from tests.mutants.nearest import PACKAGES
from tests.mutants.sites import Mutant

FIRST_FILES = 3  # of the nearest tests are tried before the others are collected: most mutants die of them
LIMIT_S = 600.0  # of the tests of a mutant: a loop without an end kills it, too
LEFT_OUT = ("weekly", "buildx", "docker", "podman", "postgres", "slurm", "nsys", "gpu")  # they take minutes a mutant
MARKERS = "markers=" + "\n".join(("slow", *LEFT_OUT))  # a docstring alone loads no tests/conftest.py
WHOLE = " and ".join(f"not {mark}" for mark in LEFT_OUT)
QUICK, SLOW = f"not slow and {WHOLE}", f"slow and {WHOLE}"
PYTEST = ("-q", "-o", MARKERS, "-p", "no:cacheprovider", "--hypothesis-seed=0")
Outcome = Literal["killed", "timed out", "survived", "no tests"]


class WorkspaceError(Exception):
    """Tests that could not be run at all."""


class Workspace:
    def __init__(self, root: Path, folder: Path) -> None:
        self.copy = folder / "checkout"
        self.environment = folder / "environment"
        self.temporary = folder / "tmp"
        self.left_out: list[str] = []  # tests that fail without a mutant
        self._passing: set[tuple[str, ...]] = set()
        self._times = count(1_000_000_000)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode:
            raise WorkspaceError(f"{root} is not a Git checkout: {listed.stderr.strip()}")
        for name in listed.stdout.split("\0"):
            if (root / name).is_file():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.copy / name)
        self._make_environment()

    def _make_environment(self) -> None:
        venv.create(self.environment, symlinks=True)
        site = self.environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        libraries = [path for path in sys.path if path.endswith("site-packages")]
        paths = [*(str(self.copy / package) for package in PACKAGES), *libraries]
        (site / "mutants.pth").write_text("\n".join(paths) + "\n")
        for program in Path(sysconfig.get_path("scripts")).iterdir():
            target = self.environment / "bin" / program.name
            if program.name.startswith("nightjar-"):
                text = program.read_text().partition("\n")[2]
                target.write_text(f"#!{self.environment}/bin/python\n{text}")
                target.chmod(0o755)
            elif not target.exists():
                target.symlink_to(program)

    def try_mutant(self, mutant: Mutant, files: Sequence[str], limit_s: float = LIMIT_S) -> Outcome:
        """Plants a mutant, runs its nearest tests up to the first that fails, and takes the mutant out again.

        Slow tests, of the nearest files alone, are asked last. A test that fails kills the mutant only if it passes
        without it.
        """
        near, far = files[:FIRST_FILES], files[FIRST_FILES:]
        for group, chosen in ((near, QUICK), (far, QUICK), (near, SLOW)):
            outcome: Outcome | None = None if group else "survived"
            while outcome is None:
                outcome = self._try_group(mutant, ["-m", chosen, *group], limit_s)
            if outcome != "survived":
                return outcome
        return "survived" if files else "no tests"

    def _try_group(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> Outcome | None:
        """The outcome of some tests; None where a test failed that fails without the mutant, too."""
        path = self.copy / mutant.path
        source = path.read_bytes()
        left_out = [f"--deselect={test}" for test in self.left_out]
        self._write(path, mutant.plant(source))
        try:
            code, output = self._run(["-x", "-rfE", *left_out, *tests], limit_s)
        finally:
            self._write(path, source)
        if code is None:
            return "timed out"
        if code in (0, 5):  # 5: no test was selected
            return "survived"
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE)[:1]
        asked = failed or ["--collect-only", *tests]
        if tuple(asked) not in self._passing and self._run(asked, limit_s)[0] not in (0, 5):
            if not failed:
                raise WorkspaceError(f"these tests cannot be collected without a mutant: {' '.join(tests)}")
            self.left_out += failed
            print(f"fails without a mutant, left out: {failed[0]}", file=sys.stderr, flush=True)
            return None
        self._passing.add(tuple(asked))
        return "killed"

    def _write(self, path: Path, source: bytes) -> None:
        """Writes a module with a time of its own, by which Python knows that it has to compile it again."""
        path.write_bytes(source)
        moment = next(self._times)
        os.utime(path, (moment, moment))

    def _run(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """Runs pytest in the copy; returns its exit code, None at the limit, and its output."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(exist_ok=True)  # what a killed test left may still write there
        programs = self.environment / "bin"
        path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        environ = {**os.environ, "VIRTUAL_ENV": str(self.environment), "PATH": path, "TMPDIR": str(self.temporary)}
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
