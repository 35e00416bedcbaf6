"""Does the bisection name the right rung, and at what cost, compared with git_bayesect on the same simulated ladders?

`nox -s bench_bisect` runs three parts: `--plants` (twenty plants in two repositories that are built together, and six
on a branch that was rebased, five minutes), `--cells` (simulated ladders: fifteen minutes on two cores, then two hours
for those whose noise belongs to their rungs; six minutes with `--quick`) and `--real` (five releases on PyPI that
became slower, a quarter of an hour); with one of these options, that part only. Plants and real regressions are
bisected by the command itself. Three of the machines replay recorded timings. Every search of the cells is a seeded
simulation (`--seed 7`); the seed that the algorithm was tuned on is not the default one.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from multiprocessing import Pool

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.bench.bisect import two_repositories
from tests.bench.bisect.clocks import MACHINES
from tests.bench.bisect.machines import OnMachine, Trial, run_on_machine, run_rung_noise
from tests.bench.bisect.real import regressions
from tests.bench.bisect.tables import list_goals, machines, make_tables, of_rungs
from tests.bench.bisect.trials import Outcome, run_cell
from tests.bench.bisect.worlds import RUNG_NOISES, Cell, RungNoise
from tests.bench.table import Row, finish, print_tables

SIZES = (64, 256, 1024)
TRIALS, QUICK_TRIALS = 250, 12


def make_cells() -> list[Cell]:
    cells = []
    for n in SIZES:
        for error in (0.0, 0.05, 0.2):
            cells.append(Cell(name=f"exit code {error:.0%}, N={n}", n=n, kind="exit", error=error))
        cells.append(Cell(name=f"flaky 10%, N={n}", n=n, kind="flaky", error=0.1))
        cells.append(Cell(name=f"5% unbuildable, exit code 5%, N={n}", n=n, kind="exit", error=0.05, unbuildable=0.05))
    return cells


def run_trial(job: tuple[Cell, int]) -> tuple[Cell, dict[str, Outcome]]:
    return job[0], run_cell(*job)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_bisect", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TRIALS} trials a cell instead of {TRIALS}")
    parser.add_argument("--trials", type=int, help="trials a cell")
    parser.add_argument("--only", default="", help="cells or real regressions whose name contains this")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--cells", action="store_true", help="simulated ladders, and not what is not asked for")
    parser.add_argument("--real", action="store_true", help="real regressions, and not what is not asked for")
    parser.add_argument("--plants", action="store_true", help="plants in repositories, and not what is not asked for")
    options = parser.parse_args(arguments)
    whole = not (options.cells or options.real or options.plants)
    rows: list[Row] = []
    if whole or options.plants:
        rows += print_tables(two_repositories.list_goals(), two_repositories.measure())
    if whole or options.cells:
        trials = options.trials or (QUICK_TRIALS if options.quick else TRIALS)
        cells = [cell for cell in make_cells() if options.only in cell.name]
        chosen = [machine for machine in MACHINES if options.only in machine]
        noises = [noise for noise in RUNG_NOISES if options.only in noise.name]
        if cells or chosen:
            rows += print_tables(list_goals(cells, chosen, []), measure_cells(cells, chosen, trials, options.seed))
        if noises:  # two hours more: they have tables of their own
            rows += print_tables(list_goals([], [], noises), measure_rungs(noises, trials, options.seed))
    if whole or options.real:
        rows += print_tables(regressions.list_goals(options.only), regressions.measure(options.only))
    return finish("bench_bisect", rows)


def measure_cells(
    cells: Sequence[Cell], machine_names: Sequence[str], trials: int, seed: int
) -> list[tuple[str, list[Row]]]:
    jobs = [(cell, seed * 1_000_000 + trial) for trial in range(trials) for cell in reversed(cells)]
    results: dict[Cell, list[dict[str, Outcome]]] = {cell: [] for cell in cells}
    on_machines: dict[str, list[OnMachine]] = {machine: [] for machine in machine_names}
    with Pool(os.cpu_count()) as pool:
        for done, (cell, outcomes) in enumerate(pool.imap_unordered(run_trial, jobs, chunksize=8), start=1):
            results[cell].append(outcomes)
            if done % math.ceil(len(jobs) / 10) == 0:
                print(f"{done} of {len(jobs)} ladders", file=sys.stderr, flush=True)
        ladders = [(machine, seed * 1_000_000 + trial) for machine in machine_names for trial in range(trials)]
        for machine, trial in pool.imap_unordered(run_on_machine, ladders, chunksize=4):
            on_machines[machine].append(trial)
    return [*(make_tables(results) if results else []), *machines(on_machines)]


def measure_rungs(noises: Sequence[RungNoise], trials: int, seed: int) -> list[tuple[str, list[Row]]]:
    ladders: dict[RungNoise, list[Trial]] = {noise: [] for noise in noises}
    jobs = [(noise, seed * 1_000_000 + trial) for trial in range(trials) for noise in noises]
    with Pool(os.cpu_count()) as pool:
        for noise, trial in pool.imap_unordered(run_one, jobs, chunksize=2):
            ladders[noise].append(trial)
    return of_rungs(ladders) if ladders else []


def run_one(job: tuple[RungNoise, int]) -> tuple[RungNoise, Trial]:
    return job[0], run_rung_noise(*job)


if __name__ == "__main__":
    sys.exit(main())
