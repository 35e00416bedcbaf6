"""Do the shares of a capture agree with the clock? Programs of two parts, and a clock read before, between and after.

The shares are those of the busy time, in which each moment is divided among the ops that run then. On a CPU callbacks
read the clock inside the program, and the goal holds for those executions. An end that is recorded too late would show
less, since the callback waits for it: ops that outlive a reader of their result have a goal.

Then programs whose calls go through JAX in every way: each stack must be one that the program has without jit.

`nox -s bench_truth` (ten minutes on two cores); `-- --only NAME` runs the programs whose name contains NAME, `--keep
FOLDER` leaves the captures there. `--gpu` runs those of one device on an NVIDIA GPU, at its size (a minute), and
`--recorded FOLDER` judges what `--gpu --keep FOLDER` has left, also on a machine without one.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.table import Row, finish, measure_part, print_rows
from tests.bench.truth.calls import list_goals, measure_calls
from tests.bench.truth.gpu import judge, record
from tests.bench.truth.measure import Shares, measure
from tests.bench.truth.programs import PROGRAMS, Program

OUTLIVED = "all: ops that outlive the start of a reader of their result"
OVERBUSY = "all: runs busier than all threads"
POINTS = 3.0  # goal: how far the share of a part may lie from what it takes alone


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_truth --", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="programs whose name contains this")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave programs and captures in this folder")
    parser.add_argument("--gpu", action="store_true", help="programs of one device at the size of a GPU")
    parser.add_argument("--recorded", metavar="FOLDER", type=Path, help="judge what --gpu has left in this folder")
    given = parser.parse_args()
    on_gpu = given.gpu or given.recorded is not None
    programs = [one for one in PROGRAMS if given.only in one.name and (one.devices == 1 or not on_gpu)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        if given.recorded is not None:
            measured = judge(programs, given.recorded)
        elif given.gpu:
            record(programs, folder)
            measured = judge(programs, folder)
        else:
            measured = measure_each(programs, folder)
    measured_rows = [row for name, shares in measured.items() for row in describe(name, shares)]
    measured_rows += [
        Row(OUTLIVED, sum(one.outlived for one in measured.values()), goal=0.0),
        Row(OVERBUSY, sum(one.overbusy for one in measured.values()), goal=0.0),
    ]
    goals = [f"{program.name}: off" for program in programs]
    rows = measure_part([*goals, OUTLIVED, OVERBUSY], lambda: measured_rows)
    if not on_gpu:
        rows += measure_part(list_goals(given.only), lambda: measure_calls(given.only))
    print_rows("truth", rows)
    return finish("bench_truth", rows)


def measure_each(programs: Sequence[Program], folder: Path) -> dict[str, Shares]:
    measured = {}
    for program in programs:
        print(f"measuring: {program.name}", file=sys.stderr, flush=True)
        own = folder / program.name.replace(" ", "_").replace(",", "")
        own.mkdir(parents=True, exist_ok=True)
        measured[program.name] = measure(program, own)
    return measured


def describe(name: str, shares: Shares) -> list[Row]:
    return [
        Row(f"{name}: share of the first", shares.ours, unit="%", rival="clock", rival_value=shares.truth),
        Row(f"{name}: off", abs(shares.ours - shares.truth), goal=POINTS, unit="points"),
    ]


if __name__ == "__main__":
    sys.exit(main())
