"""What do other detectors say about the same series? Runs in an environment of its own, with NumPy and the rivals only.

In: a .npz of series (`null_<noise>`: whole unchanged ones, `step_<noise>_<size>`: with a step at night `at`) on the
command line. Out: JSON on stdout: for each rival and entry, changes per series or the first night that found the step.

Each rival is used with its own functions and defaults. Rules of one night are asked every night; detectors of change
points once on a whole null series, which spares them the alarms that they raise and take back, and on every night after
a step.
"""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from typing import Any

import numpy as np

NEAR = 5  # nights around the step that count as found
WITHIN = 10  # nights after it
FIRST = 20  # nights before the first one that is judged


def otava(values: Any) -> list[int]:
    """Otava 0.8 through the class that its command uses."""
    from otava.series import AnalysisOptions, Metric, Series  # type: ignore[import-not-found,unused-ignore]

    options = AnalysisOptions()
    options.max_pvalue, options.min_magnitude = 0.001, 0.0
    series = Series("series", None, list(range(len(values))), {"m": Metric()}, {"m": [float(v) for v in values]}, {})
    return [int(point.index) for point in series.analyze(options).change_points["m"]]


def pelt(values: Any) -> list[int]:
    """ruptures' PELT with its kernel cost; of the penalties 3 to 8 the one with most power at few clean alarms."""
    import ruptures  # type: ignore[import-not-found,unused-ignore]

    logs = np.log(np.asarray(values)).reshape(-1, 1)
    logs = (logs - np.median(logs)) / max(1e-12, float(np.std(logs)))
    ends = ruptures.KernelCPD(kernel="rbf", min_size=5).fit(logs).predict(pen=5)
    return [int(end) for end in ends[:-1]]


def toolbox(values: Any) -> bool:
    """JAX-Toolbox's assertion as it is meant, actual > 0.95 x baseline: fails what is more than 5 % slower."""
    return bool(values[-1] > np.median(values[:FIRST]) / 0.95)


DETECTORS: dict[str, Callable[[Any], list[int]]] = {"Otava": otava, "PELT": pelt}
RULES: dict[str, Callable[[Any], bool]] = {"JAX-Toolbox as intended": toolbox}


def false_alarms(rival: str, values: Any) -> int:
    if rival in DETECTORS:
        return len(DETECTORS[rival](values))
    return sum(RULES[rival](values[: night + 1]) for night in range(FIRST, len(values)))


def nights_to_find(rival: str, values: Any, at: int) -> int:
    """Nights until the step is found (1 is its own); 0 for not within ten."""
    for night in range(at, at + WITHIN):
        if rival in RULES:
            found = RULES[rival](values[: night + 1])
        else:
            found = any(abs(index - at) <= NEAR for index in DETECTORS[rival](values[: night + 1]))
        if found:
            return night - at + 1
    return 0


def ask(task: tuple[str, str, Any, int]) -> tuple[str, str, list[int]]:
    rival, entry, values, at = task
    logging.disable(logging.CRITICAL)
    with redirect_stdout(io.StringIO()):
        if entry.startswith("null"):
            return rival, entry, [false_alarms(rival, one) for one in values]
        return rival, entry, [nights_to_find(rival, one, at) for one in values]


def tasks(given: Any) -> Iterable[tuple[str, str, Any, int]]:
    """Every rival on every entry."""
    for rival in (*DETECTORS, *RULES):
        for entry in given.files:
            if entry == "at":
                continue
            yield rival, entry, np.exp(given[entry]), int(given["at"])


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        answers = list(pool.map(ask, tasks(np.load(sys.argv[1]))))
    json.dump({f"{rival}|{entry}": found for rival, entry, found in answers}, sys.stdout)
