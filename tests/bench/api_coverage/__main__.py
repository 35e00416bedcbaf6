"""Which names that people use do the jobs of the nights execute? Measured while they run.

`nox -s api_coverage` records the CPU nightly and the conformance tests (about ten minutes on two quiet cores);
`-- --calls FILE` takes a recording of `nightjar-ci calls`, and may be given several times. What counts as executed:
docs/reference/calls.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.calls.recording import expand_alias, read_used
from nightjar_ci.formats.calls import Calls, NameCalls, Share, find_shares, read_calls
from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows
from tests.places import ROOT, SHARED_DATA

USED = SHARED_DATA / "api-usage" / "symbols.json"
MATRICES = (  # matrix file and further options of `nightjar-ci calls`
    ("nightly-cpu", ()),
    ("nightly-upstream", ("--jobs", "conformance*", "--environment", "current")),
)
NNX, WEIGHT = 80, 0.90  # goals: names of flax.nnx, and the share of all by the number of files that use them
TEST_HELPERS = frozenset(
    map(expand_alias, ("ocp.test_utils", "ocp._src", "ocp.__version__"))
)  # nothing that people run


def join(recordings: Sequence[Calls], used: dict[str, int]) -> Calls:
    """One recording of several, with a list of the names that people use; of the functions only the names remain."""
    names: dict[str, NameCalls] = {}
    for calls in recordings:
        for name, executed in calls.names.items():
            earlier = names.get(name, NameCalls(cells=(), own=()))
            names[name] = NameCalls(cells=(*earlier.cells, *executed.cells), own=(*earlier.own, *executed.own))
    first = recordings[0]
    return first.model_copy(update={"functions": (), "cells": {}, "names": names, "used": used})


def record(used: Path, folder: Path) -> list[Calls]:
    """Records each matrix."""
    recordings = []
    for name, options in MATRICES:
        state = folder / name
        command = [sys.executable, "-m", "nightjar_ci", "calls", str(ROOT / "ci" / "matrix" / f"{name}.toml")]
        environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(state)}
        done = subprocess.run([*command, "--used", str(used), *options], cwd=ROOT, env=environ, check=False)
        path = state / "calls" / f"{name}.json"
        if done.returncode != 0 or not path.exists():
            raise NotMeasuredError(f"nightjar-ci calls {name} ended with exit code {done.returncode}")
        recordings.append(read_calls(path))
    return recordings


def list_goals() -> list[str]:
    """The names of the goals."""
    return ["names of flax.nnx", "names of grain that are missing", "names of orbax that are missing", "all, by use"]


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Records, and compares with what people use."""
    if not options.used.is_file():
        raise NotMeasuredError(f"{options.used} is missing; --used names a list of what people use")
    used = read_used(options.used)
    recordings = [read_calls(path) for path in options.calls] or record(options.used, folder)
    shares = {share.library: share for share in find_shares(join(recordings, used))}
    rows = [
        make_row("names of flax.nnx", shares, "flax.nnx"),
        make_missing("names of grain that are missing", shares, "grain"),
        make_missing("names of orbax that are missing", shares, "orbax.checkpoint"),
    ]
    whole = shares.pop("all")
    fraction = whole.executed_weight / whole.weight
    rows.append(Row(name="all, by use", ours=fraction, goal=WEIGHT, better="higher"))
    for library, share in shares.items():
        name = f"  {library}, by use: {share.executed} of {share.used} names, {share.own} by the jobs' own code"
        rows.append(Row(name=name, ours=share.executed_weight / share.weight, better="higher"))
        print(f"{library} lacks: {', '.join(share.missing) or 'nothing'}")
    return rows


def make_row(name: str, shares: dict[str, Share], library: str) -> Row:
    """The number of executed names of a library, with its goal."""
    executed = shares[library].executed if library in shares else 0
    return Row(name=name, ours=executed, goal=NNX, better="higher")


def make_missing(name: str, shares: dict[str, Share], library: str) -> Row:
    """The number of names of a library that no job executes, without those that are no part of it for its users."""
    missing = set(shares[library].missing) - TEST_HELPERS if library in shares else set()
    return Row(name=name, ours=len(missing), goal=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench and prints its table."""
    parser = argparse.ArgumentParser(prog="nox -s api_coverage --", description=__doc__)
    parser.add_argument("--used", type=Path, default=USED, help="JSON list of the names that people use")
    parser.add_argument("--calls", type=Path, action="append", default=[], help="a recording; default: record now")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="nightjar-calls-") as temporary:
        rows = measure_part(list_goals(), lambda: measure(options, Path(temporary)))
    print_rows("Names that people use and the jobs execute", rows)
    return finish("api_coverage", rows)


if __name__ == "__main__":
    sys.exit(main())
