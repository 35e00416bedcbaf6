"""Which goals were reached? In: the outcomes of all trials. Out: tables of rows, each with its goal and a rival."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.bench.bisect.machines import CANNOT_TELL, OnMachine, Trial
from tests.bench.bisect.trials import DEAR, GIT, OURS, SURE, Outcome
from tests.bench.bisect.worlds import Cell, RungNoise
from tests.bench.table import Row

Results = dict[Cell, list[dict[str, Outcome]]]
CORRECT = "Correct culprits, tests dominate; Wilson interval of ours"
CORRECT_DEAR = "Correct culprits, builds dominate (a build costs 20 tests)"
TESTS = "Tests, where tests dominate (mean)"
BUILDS = "Builds, where builds dominate (mean)"
OWN = "Goals of their own"
WRONG = "Wrong answers by machine; that it cannot tell is not wrong"
RUNS = "Runs (mean; a pair is two)"
OF_RUNGS = "Wrong at a stated 0.99, where noise belongs to a rung or two changes are there"
LOUD = "Cannot tell, no more often than a plain test of 40 pairs of the ends"

STATED = 0.99


def wilson(right: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share.

    >>> low, high = wilson(400, 400)
    >>> round(low, 3), round(high, 3)
    (0.99, 1.0)
    """
    p = right / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return centre - half, min(centre + half, 1.0)


def share(outcomes: Sequence[dict[str, Outcome]], name: str, what: Callable[[Outcome], bool]) -> float:
    """In percent; nan where that algorithm was not run."""
    found = [what(outcome[name]) for outcome in outcomes if name in outcome]
    return 100 * float(np.mean(found)) if found else math.nan


def mean(outcomes: Sequence[dict[str, Outcome]], name: str, what: Callable[[Outcome], int]) -> float:
    """Mean cost; nan where that algorithm was not run."""
    found = [what(outcome[name]) for outcome in outcomes if name in outcome]
    return float(np.mean(found)) if found else math.nan


def list_goals(
    cells: Sequence[Cell], machine_names: Sequence[str], noises: Sequence[RungNoise] = ()
) -> dict[str, list[str]]:
    names = [cell.name for cell in cells]
    sure = [cell.n for cell in cells if cell.kind == "exit" and cell.error == 0]
    own = [f"deterministic, {what}, N={n}" for n in sure for what in ("most tests", "correct")]
    if any(cell.n == 1024 for cell in cells):
        own.append("CPU time of a decision, N=1024")
    if any(cell.error > 0 for cell in cells):
        own += ["stated 0.99 is right, cells with noise", "the same, not too seldom stated"]
    by_title = {
        CORRECT: names,
        CORRECT_DEAR: names,
        TESTS: names,
        BUILDS: names,
        OWN: [*own, "aborts, all cells"] if names else [],
        WRONG: list(machine_names),
        LOUD: list(machine_names),
        OF_RUNGS: [noise.name for noise in noises],
    }
    return {title: names for title, names in by_title.items() if names}


def make_tables(results: Results) -> list[tuple[str, list[Row]]]:
    return [
        (CORRECT, correct(results, OURS)),
        (CORRECT_DEAR, correct(results, DEAR)),
        (TESTS, tests(results)),
        (BUILDS, builds(results)),
        (OWN, special(results)),
    ]


def of_rungs(ladders: dict[RungNoise, list[Trial]]) -> list[tuple[str, list[Row]]]:
    """Bisections of ladders whose noise belongs to a rung, each wrong answer without a stated 0.99 beside them."""
    wrong, silent, runs = [], [], []
    for noise, trials in ladders.items():
        stated = [trial.wrong and trial.conclusion.probability >= STATED for trial in trials]
        ours, every = (100 * float(np.mean(kind)) for kind in (stated, [trial.wrong for trial in trials]))
        wrong.append(Row(noise.name, ours, goal=1.0, unit="%", rival="stated or not", rival_value=every))
        cannot = [trial.conclusion.kind in CANNOT_TELL for trial in trials]
        silent.append(Row(noise.name, 100 * float(np.mean(cannot)), unit="%"))
        runs.append(Row(noise.name, float(np.mean([trial.runs for trial in trials])), unit="runs"))
    return [(OF_RUNGS, wrong), ("The same: cannot tell", silent), ("The same: runs (mean)", runs)]


def machines(ladders: dict[str, list[OnMachine]]) -> list[tuple[str, list[Row]]]:
    wrong, named, runs, loud = [], [], [], []
    for machine, ladder in ladders.items():
        trials = [each.trial for each in ladder]
        wrong.append(Row(machine, 100 * float(np.mean([trial.wrong for trial in trials])), goal=1.0, unit="%"))
        right = 100 * float(np.mean([trial.conclusion.kind == "culprit" and not trial.wrong for trial in trials]))
        named.append(Row(machine, right, better="higher", unit="%"))
        runs.append(Row(machine, float(np.mean([trial.runs for trial in trials])), unit="runs"))
        silent = 100 * float(np.mean([trial.conclusion.kind in CANNOT_TELL for trial in trials]))
        plain = 100 * (1 - float(np.mean([each.is_told for each in ladder])))
        loud.append(Row(machine, silent, goal=plain, unit="%", rival="Wilcoxon, 40 pairs", rival_value=plain))
    return [(WRONG, wrong), ("Culprits named, and right", named), (RUNS, runs), (LOUD, loud)]


def correct(results: Results, name: str) -> list[Row]:
    rows = []
    for cell, found in results.items():
        right = sum(outcome[name].right for outcome in found)
        low, high = (100 * bound for bound in wilson(right, len(found)))
        rows.append(
            Row(
                f"{cell.name} [{low:.1f}, {high:.1f}]",
                100 * right / len(found),
                goal=99.0,
                better="higher",
                unit="%",
                rival=GIT,
                rival_value=share(found, GIT, lambda outcome: outcome.right),
            )
        )
    return rows


def tests(results: Results) -> list[Row]:
    """Mean tests; the goal is git_bayesect's number in the same run."""
    rows = []
    for cell, found in results.items():
        ours, git = (mean(found, name, lambda outcome: outcome.tests) for name in (OURS, GIT))
        rows.append(Row(cell.name, ours, goal=git, unit="tests", rival=GIT, rival_value=git))
    return rows


def builds(results: Results) -> list[Row]:
    """Mean builds where a build costs as much as many tests."""
    return [
        Row(
            f"{cell.name} (95 % of searches: {np.quantile([o[DEAR].builds for o in found], 0.95):.0f})",
            ours=mean(found, DEAR, lambda outcome: outcome.builds),
            goal=math.ceil(math.log2(cell.n)) + 3,
            unit="builds",
            rival=GIT,
            rival_value=mean(found, GIT, lambda outcome: outcome.builds),
        )
        for cell, found in results.items()
    ]


def special(results: Results) -> list[Row]:
    rows = []
    for cell, found in results.items():
        if SURE in found[0] and cell.kind == "exit":
            worst = max(outcome[SURE].tests for outcome in found)
            rows.append(Row(f"deterministic, most tests, N={cell.n}", worst, goal=math.ceil(math.log2(cell.n)) + 2))
            rows.append(
                Row(
                    f"deterministic, correct, N={cell.n}",
                    share(found, SURE, lambda outcome: outcome.right),
                    goal=100.0,
                    better="higher",
                    unit="%",
                )
            )
    every = [outcome[name] for found in results.values() for outcome in found for name in (OURS, DEAR)]
    rows.append(Row("aborts, all cells", 100 * float(np.mean([o.aborted for o in every])), goal=1.0, unit="%"))
    noisy = [
        outcome[name]
        for cell, found in results.items()
        if cell.error > 0
        for outcome in found
        for name in (OURS, DEAR)
        if outcome[name].kind == "culprit"
    ]
    if noisy:
        right = 100 * float(np.mean([o.right for o in noisy]))
        low, high = (100 * bound for bound in wilson(sum(o.right for o in noisy), len(noisy)))
        name = f"stated 0.99 is right, cells with noise [{low:.2f}, {high:.2f}]"
        rows.append(Row(name, right, goal=98.5, better="higher", unit="%"))
        rows.append(Row("the same, not too seldom stated", right, goal=99.9, unit="%"))
    if large := [outcome[OURS] for cell, found in results.items() if cell.n == 1024 for outcome in found]:
        spent = 1000 * sum(o.seconds for o in large) / sum(o.tests for o in large)
        rows.append(Row("CPU time of a decision, N=1024", spent, goal=10.0, unit="ms"))
    return rows
