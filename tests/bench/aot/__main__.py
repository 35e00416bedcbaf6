"""Does the gate of programs that are compiled ahead of time reach its goals? Each part measures some of them.

`--only PART` runs one part, `--quick` a piece of it. `--folder FOLDER` keeps what is compiled there, and does not
compile again what is there already, so that a session that was ended goes on.

A part is a module beside this file with `measure(quick, folder) -> list[Row]`; the program without a fault is compiled
once for all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tests.bench.table import Row, finish, print_rows

PARTS = ("repeats", "faults", "releases")


def main() -> int:
    """Runs the parts, prints a table of each, then of all, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s bench_aot --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="a part of the work: shows that it runs, decides little")
    parser.add_argument("--folder", type=Path, help="keep what is compiled here, and take what is here already")
    given = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder.resolve() if given.folder is not None else Path(temporary)
        for part in given.only or PARTS:
            print(f"measuring: {part}", file=sys.stderr, flush=True)
            found: list[Row] = import_module(f"tests.bench.aot.{part}").measure(given.quick, folder)
            print_rows(part, found)
            rows += found
    if len(given.only or PARTS) > 1:
        print_rows("aot", rows)
    return finish("bench_aot", rows)


if __name__ == "__main__":
    sys.exit(main())
