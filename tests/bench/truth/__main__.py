"""Do the shares of a capture agree with the clock? Programs of two parts, each part timed alone in the same run.

`nox -s bench_truth` (ten minutes on two cores); `-- --only NAME` runs the programs whose name contains NAME, `--keep
FOLDER` leaves the captures there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.bench.table import Row, finish, measure_part, print_rows
from tests.bench.truth.measure import Shares, measure
from tests.bench.truth.programs import PROGRAMS

OUTLIVED = "all: ops that outlive the start of a reader of their result"
OVERBUSY = "all: runs busier than all threads"
POINTS = 3.0  # goal: how far the share of a part may lie from what it takes alone


def main() -> int:
    """Measures the programs, prints a table, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s bench_truth --", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="programs whose name contains this")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave programs and captures in this folder")
    given = parser.parse_args()
    measured: dict[str, Shares] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for program in PROGRAMS:
            if given.only in program.name:
                print(f"measuring: {program.name}", file=sys.stderr, flush=True)
                folder = (given.keep or Path(temporary)) / program.name.replace(" ", "_").replace(",", "")
                folder.mkdir(parents=True, exist_ok=True)
                measured[program.name] = measure(program, folder)
    measured_rows = [row for name, shares in measured.items() for row in describe(name, shares)]
    measured_rows += [
        Row(
            name=OUTLIVED,
            ours=sum(one.outlived for one in measured.values()),
            goal=0.0,
        ),
        Row(
            name=OVERBUSY,
            ours=sum(one.overbusy for one in measured.values()),
            goal=0.0,
        ),
    ]
    goals = [f"{program.name}: off" for program in PROGRAMS if given.only in program.name]
    rows = measure_part([*goals, OUTLIVED, OVERBUSY], lambda: measured_rows)
    print_rows("truth", rows)
    return finish("bench_truth", rows)


def describe(name: str, shares: Shares) -> list[Row]:
    """The share beside the truth, the goal, and what the capture says of itself."""
    return [
        Row(
            name=f"{name}: share of the first",
            ours=shares.ours,
            unit="%",
            rival="alone",
            rival_value=shares.truth,
        ),
        Row(name=f"{name}: off", ours=abs(shares.ours - shares.truth), goal=POINTS, unit="points"),
        Row(name=f"{name}: time together over alone", ours=shares.together, unit="x"),
        Row(name=f"{name}: device time over elapsed", ours=shares.op_over_elapsed, unit="x"),
        Row(name=f"{name}: uncertain", ours=shares.uncertain, unit="%"),
        Row(name=f"{name}: cut off by the data flow", ours=shares.cut, unit="%"),
    ]


if __name__ == "__main__":
    sys.exit(main())
