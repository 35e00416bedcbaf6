"""Does the gate of programs that are compiled ahead of time reach its goals? Each part measures some of them.

`--only PART` runs one part, `--quick` a piece of it.

A part is a module beside this file with `measure(quick) -> list[Row]`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from tests.bench.table import Row, finish, print_rows

PARTS = ("faults", "repeats", "releases")


def main() -> int:
    """Runs the parts, prints a table of each, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s aot --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="a part of the work: shows that it runs, decides little")
    given = parser.parse_args()
    rows: list[Row] = []
    for part in given.only or PARTS:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        found: list[Row] = import_module(f"tests.bench.aot.{part}").measure(given.quick)
        print_rows(part, found)
        rows += found
    return finish("aot", rows)


if __name__ == "__main__":
    sys.exit(main())
