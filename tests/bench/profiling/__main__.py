"""Does the profiler reach its goals? Each part measures some of them; `--only PART` runs one.

A part is a module beside this file with `measure() -> list[Row]`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from tests.bench.table import Row, finish, print_rows

PARTS = ("archive", "outputs", "projection", "ranks", "xspace", "totals", "attribution")


def main() -> int:
    """Runs the parts, prints a table of each, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s bench_profiling --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    rows: list[Row] = []
    for part in parser.parse_args().only or PARTS:
        print(f"measuring: {part}", file=sys.stderr, flush=True)
        found: list[Row] = import_module(f"tests.bench.profiling.{part}").measure()
        print_rows(part, found)
        rows += found
    return finish("bench_profiling", rows)


if __name__ == "__main__":
    sys.exit(main())
