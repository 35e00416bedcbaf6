"""What do the trainer and the loaders cost? Overhead over the bare loop, predictions one by one, JPEGs a second.

`nox -s bench_models` (half an hour on two cores); `-- --only PART` runs one part. A part is a module beside
this file with `list_goals()` and `measure()`. All compare in one run, in turns: ratios hold on a busy machine, times do
not.
"""

from __future__ import annotations

import argparse
import sys

from tests.bench.table import finish, run_parts

PARTS = ("trainer", "linear", "loaders")


def main() -> int:
    """Runs the parts, prints a table of each, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s bench_models --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    rows = run_parts("models", parser.parse_args().only or PARTS)
    return finish("bench_models", rows)


if __name__ == "__main__":
    sys.exit(main())
