"""Fifteen planted inefficiencies: the advice has to name 14 of them first, and to predict 12 savings by the clock.

Then ordinary programs with nothing planted, of which one may have advice.

`nox -s bench_advice` (a few minutes on two cores); `-- --only NAME` runs those whose name contains NAME. The program
with the inefficiency and the same without it are timed in turns in this process; then the first is captured, and what
its capture predicts is compared with the medians.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from nightjar_profiling import capture_steps, load
from tests.bench.advice.programs import PLANTS, Planted, Steps, list_ordinary
from tests.bench.table import Row, finish, print_rows

TURNS = 7
MOST_ADVISED = 1  # goal: ordinary programs with advice
NAMED, PREDICTED = 0.9, 0.8  # goals: shares of the plants that are named first, and whose saving is predicted
OFF = 0.30  # of the measured saving, by which a prediction may be off


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_advice --", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="programs whose name contains this")
    given = parser.parse_args()
    rows, named, close, asked = [], 0, 0, 0
    for plant in PLANTS:
        planted = plant()
        if given.only not in planted.name:
            continue
        asked += 1
        print(f"measuring: {planted.name}", file=sys.stderr, flush=True)
        measured = measure_saving(planted)
        rank, predicted = ask(planted)
        off = abs(predicted - measured) / max(abs(measured), 1e-9)
        named += rank == 1
        close += off <= OFF
        rows += [
            Row(f"{planted.name}: rank of its advice", float(rank or 99)),
            Row(f"{planted.name}: saving", 100 * predicted, unit="%", rival="measured", rival_value=100 * measured),
            Row(f"{planted.name}: off, of the measured", off),
        ]
    rows += [
        Row(f"named first, of {asked}", named, goal=NAMED * asked, better="higher"),
        Row(f"savings within {OFF:.0%}, of {asked}", close, goal=PREDICTED * asked, better="higher"),
    ]
    ordinary = {name: steps for name, steps in list_ordinary().items() if given.only in name}
    advised = {name: kinds for name, steps in ordinary.items() if (kinds := list_kinds(steps))}
    print(f"ordinary programs with advice: {advised}", file=sys.stderr)
    rows.append(Row(f"ordinary programs with advice, of {len(ordinary)}", len(advised), goal=MOST_ADVISED))
    print_rows("advice", rows)
    return finish("bench_advice", rows)


def measure_saving(planted: Planted) -> float:
    """The share of the time that the better program saves: of medians, in turns."""
    times: dict[bool, list[float]] = {True: [], False: []}
    planted.worse(2)
    planted.better(2)
    for _ in range(TURNS):
        for is_worse, run in ((True, planted.worse), (False, planted.better)):
            times[is_worse].append(time_steps(run, planted.steps))
    return 1 - statistics.median(times[False]) / statistics.median(times[True])


def time_steps(run: Steps, steps: int) -> float:
    begin = time.perf_counter()
    run(steps)
    return time.perf_counter() - begin


def ask(planted: Planted) -> tuple[int | None, float]:
    for rank, row in enumerate(list_advice(planted.worse, planted.steps), start=1):
        if row["kind"] == planted.kind:
            return rank, row["saving_fraction"]
    return None, 0.0


def list_kinds(steps: Steps) -> list[str]:
    return [f"{row['kind']} {row['saving_fraction']:.0%}" for row in list_advice(steps, 20)]


def list_advice(run: Steps, steps: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        with capture_steps(Path(temporary) / "capture", user_code=("tests",)) as folder:
            run(steps)
        advice: list[dict[str, Any]] = (load(folder).profile or {}).get("advice", [])
    return advice


if __name__ == "__main__":
    sys.exit(main())
