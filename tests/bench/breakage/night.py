"""A night of one job with a planted library.

In: a job, and the folder of the library with a fault. Out: what the gate says of it, and which
libraries its report names as suspects. Of three seeds the first one runs alone: a night sees no less.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.causes.tonight import gather_causes
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.verdict import read_verdicts
from tests.bench.breakage.plant import add_to_path
from tests.bench.breakage.recordings import MATRICES, write_matrix
from tests.bench.table import NotMeasuredError
from tests.places import ROOT

POLICIES = ROOT / "ci" / "policies.toml"
NIGHT_TIMEOUT_S = 1800
NO_SANDBOX = {"NIGHTJAR_SANDBOX": "off"}  # a sandbox hides other folders in /tmp, and with them the planted library
RED = (1, 3)  # regressed, or a job did not complete; 4, cannot tell, is not red


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A night of one job.

    Attributes:
        job: that ran.
        exit_code: of the nightly.
        seconds: that it took.
        said: the lines of its report that say what is wrong.
        named: the libraries that it names as suspects, most suspect first.
    """

    job: str
    exit_code: int
    seconds: float
    said: str
    named: tuple[str, ...]

    @property
    def is_red(self) -> bool:
        """Whether somebody is woken up."""
        return self.exit_code in RED


def run_night(matrix: str, job: str, library: Path | None, folder: Path, parts: Collection[str] = ()) -> Ended:
    """Runs, gates and reports a job against the committed baselines.

    Args:
        matrix: its name.
        job: id of one of its jobs.
        library: of `plant.planted`; None for the installed ones.
        folder: of the night's state; new.
        parts: of the job; without them it runs whole.
    """
    variables = {"NIGHTJAR_STATE_DIR": str(folder / "state"), **NO_SANDBOX}
    environ = add_to_path(library, {**os.environ, **variables})
    environ.pop("NIGHTJAR_DATABASE_URL", None)
    command = [
        sys.executable,
        "-m",
        "nightjar_ci",
        "nightly",
        str(write_matrix(matrix, parts, folder)),
        "--out",
        str(folder / "n"),
    ]
    begin = time.monotonic()
    done = subprocess.run(
        [*command, "--environment", "current", "--jobs", job],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=NIGHT_TIMEOUT_S,
        check=False,
    )
    seconds = time.monotonic() - begin
    said, named = read_report(folder / "n")
    return Ended(
        job=job,
        exit_code=done.returncode,
        seconds=seconds,
        said=said or done.stderr[-300:],
        named=named,
    )


def read_report(night: Path) -> tuple[str, tuple[str, ...]]:
    """What a night's report says is wrong, and the libraries that it names."""
    summary = night / "summary.md"
    if not summary.exists():
        return "", ()
    lines = summary.read_text(encoding="utf-8").splitlines()
    red = [line for line in lines if re.search(r"regressed|failed|killed|timeout|invalid", line)]
    results, verdicts = read_night_results(night), read_verdicts(night / "verdicts.json")
    causes = gather_causes(results, verdicts, (), POLICIES, ROOT)
    named = [suspect.library for cause in causes for suspect in cause.suspects]
    return "\n".join(red)[:600], tuple(dict.fromkeys(named))


def find_matrix(name: str) -> str:
    """The path of a matrix of this repository."""
    return str(ROOT / "ci" / "matrix" / f"{name}.toml")


def record(folder: Path) -> list[Path]:
    """Records the calls of the matrices; returns the recordings."""
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(folder)}
    for name, meant in MATRICES.items():
        options = ("--jobs", f"{meant}*", "--environment", "current")
        command = [sys.executable, "-m", "nightjar_ci", "calls", find_matrix(name), *options]
        done = subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise NotMeasuredError(f"nightjar-ci calls {name} ended with exit code {done.returncode}")
    return [folder / "calls" / f"{name}.json" for name in MATRICES]
