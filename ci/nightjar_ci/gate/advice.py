"""Commands to run next, ready to paste, with every path filled in.

In: a night folder or a cell, and the paths of policies and baselines. Out: a command line. The matrix of a cell is
looked up next to the policies, or in the working directory and its `ci` if the policies are the built-in ones.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.formats.project_files import OWN_POLICIES
from nightjar_ci.night.matrix import expand, read_matrix


def find_matrix(policies: Path, cell: str) -> Path | None:
    """The first matrix file with a job of that cell, near the policies; None if there is none."""
    folders = [policies.parent]
    if policies == OWN_POLICIES:
        folders = [Path(), Path("ci")]
    for folder in folders:
        for path in sorted([*folder.glob("*.toml"), *folder.glob("*/*.toml")]):
            try:
                if any(job.cell == cell for job in expand(read_matrix(path))):
                    return path
            except InputError:
                continue  # some other TOML file
    return None


def render_baseline(cell: str, policies: Path, baselines: Path, *, facts_only: bool) -> str | None:
    """The command that remakes a cell's baseline; None if no matrix near the policies has the cell."""
    matrix = find_matrix(policies, cell)
    if matrix is None:
        return None
    options = _render_options(policies, baselines)
    if facts_only:
        options.append("--facts-only")
    return shlex.join(map(str, ["nightjar-ci", "baseline", matrix, "--jobs", cell, *options]))


def render_confirm(folder: Path, policies: Path, baselines: Path, matrix: Path | None = None) -> str:
    """The command that runs the paired re-runs that a night needs."""
    if matrix is None:
        cells = dict.fromkeys(outcome.cell for outcome in read_night(folder).jobs)
        matrix = next(filter(None, (find_matrix(policies, cell) for cell in cells)), None)
    options = _render_options(policies, baselines)
    return shlex.join(map(str, ["nightjar-ci", "gate", folder, "--rerun", matrix or "MATRIX", *options]))


def _render_options(policies: Path, baselines: Path) -> list[str]:
    options = ["--baselines", str(baselines)]
    if policies != OWN_POLICIES:
        options = ["--policies", str(policies), *options]
    return options
