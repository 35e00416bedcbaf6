"""Nights in which something went wrong: does the gate say so?

In: two hundred seeded faults, each in one night after twenty good ones: series that vanish, have another name, are
NaN, infinite or zero, have another unit, jobs that did not run, runners that are of another kind. Out: how many end
with exit code 0 and do not name the series; and how often an unchanged night ends otherwise. Through `nightjar-ci
gate`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from nightjar_ci.cli import main
from nightjar_ci.formats.documents import write_text
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.folder import import_night
from tests.bench.gate.noise import Rng
from tests.bench.table import Row
from tests.ci.faulty_nights import (
    NIGHTS,
    OTHER,
    Edit,
    Results,
    break_curve,
    change_unit,
    drop,
    leave_night,
    put,
    remove_jobs,
    rename,
    results_of,
)
from tests.ci.nights import CELL

FAULTS, CONTROLS, SEED = 200, 20, 20261126
POLICIES = 'schema = "nightjar.policies/1"\n[[history]]\nmeasure = "*"\n[[facts]]\n'
SAMPLES = {
    "step_time": "s",
    "peak_memory": "bytes",
    "bandwidth": "bytes/s",
    "compile_time": "s",
    "ratio": "",
}
WRONG_UNITS = {"s": "ms", "bytes": "MiB", "bytes/s": "GB/s", "": "%"}
UNSAID = f"injected faults that end with exit code 0 and are not mentioned (of {FAULTS})"
ALARMS = f"unchanged nights that end with another exit code (of {CONTROLS})"

Injected = tuple[str, Edit]  # a pattern of what has to be said, and what happens


def list_goals(quick: bool = False) -> list[str]:
    """The names of this part's goals."""
    return [UNSAID, ALARMS]


def measure(quick: bool = False) -> list[Row]:
    """Rows of faults that nobody mentions, and of alarms for nothing."""
    rng = np.random.default_rng(SEED)
    kinds = list(KINDS.items())
    unsaid, red = 0, 0
    with earlier_nights() as folder:
        for number in range(FAULTS // 10 if quick else FAULTS):
            kind, draw = kinds[number % len(kinds)]
            name, edit = draw(rng)
            code, said = gate_night_with(folder, edit, NIGHTS + number % 8)
            red += code != 0
            if code == 0 and re.search(name, " ".join(said.split())) is None:
                print(f"not mentioned: {name}: {kind}", flush=True)
                unsaid += 1
        controls = [
            gate_night_with(folder, lambda results: None, NIGHTS + number % 8)[0]
            for number in range(CONTROLS // 10 if quick else CONTROLS)
        ]
    return [
        Row(name=UNSAID, ours=unsaid, goal=0),
        Row(name="injected faults that end with another exit code than 0", ours=red, better="higher"),
        Row(name=ALARMS, ours=sum(code != 0 for code in controls), goal=0),
    ]


@contextlib.contextmanager
def earlier_nights() -> Iterator[Path]:
    """A folder with the store of twenty good nights, which is the current one."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(folder / "good")}))
        for day in range(NIGHTS):
            import_night(store, leave_night(folder / "earlier", day, results_of(day)))
        store.close()
        shutil.rmtree(folder / "earlier")
        write_text(folder / "policies.toml", POLICIES)
        yield folder


def gate_night_with(folder: Path, edit: Edit, day: int) -> tuple[int, str]:
    """The exit code of a night's gate, and what it printed."""
    results = results_of(day)
    edit(results)
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    shutil.copytree(folder / "good", state)
    os.environ["NIGHTJAR_STATE_DIR"] = str(state)
    night = leave_night(folder / "nights", day, results)
    printed = io.StringIO()
    code: str | int | None = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(["gate", str(night), "--policies", "policies.toml", "--baselines", "none"])
        except SystemExit as ended:
            code = ended.code
    shutil.rmtree(night)
    return int(code or 0), printed.getvalue()


def change_cell(edit: Callable[[str], Edit], names: tuple[str, ...], rng: Rng) -> Injected:
    """One fault of a random series of the first cell."""
    name = str(rng.choice(names))
    return f"{CELL}/{name}", edit(name)


def drop_any(rng: Rng) -> Injected:
    """A series of one of two cells is gone."""
    cell, name = str(rng.choice([CELL, OTHER])), str(rng.choice([*SAMPLES, "loss", "accuracy"]))
    return f"{cell}/{name}", drop(name, cell)


def put_any(rng: Rng, values: tuple[float, ...]) -> Injected:
    """Rounds with a wrong one at a random place among good ones, in some seeds of three."""
    name, first = str(rng.choice(list(SAMPLES))), int(rng.integers(3))
    good = rng.uniform(0.9, 1.1, 5) * {"step_time": 0.05, "peak_memory": 3.2e8, "bandwidth": 2e9}.get(name, 12.0)
    rounds = good.tolist()
    for value in values:
        rounds[int(rng.integers(5))] = value
    return f"{CELL}/{name}", put(name, *rounds, seeds=slice(first, None))


def put_all(rng: Rng, value: float) -> Injected:
    """All rounds are one wrong value."""
    return change_cell(lambda name: put(name, *[value] * int(rng.integers(1, 6))), tuple(SAMPLES), rng)


def break_any_curve(rng: Rng) -> Injected:
    """A curve with a value that is not finite, at a random place."""
    name, values = str(rng.choice(["loss", "accuracy"])), [3.0, 2.5, 2.0]
    values[int(rng.integers(3))] = float(rng.choice([np.nan, np.inf, -np.inf]))
    return f"{CELL}/{name}", break_curve(name, *values)


def rename_any(rng: Rng) -> Injected:
    """A series has another name."""
    return change_cell(lambda name: rename(name, f"new_{name}"), tuple(SAMPLES), rng)


def change_any_unit(rng: Rng, factor: float) -> Injected:
    """A series has another unit; its numbers too, or not."""
    names = tuple(SAMPLES)
    return change_cell(lambda name: change_unit(name, WRONG_UNITS[SAMPLES[name]], factor), names, rng)


def switch_runner(rng: Rng) -> Injected:
    """All jobs of a cell, or of both, ran on another processor or device."""
    cells = [[CELL], [OTHER], [CELL, OTHER]][int(rng.integers(3))]
    key, value = [("devices", ["NVIDIA H100"]), ("cpu", "Xeon"), ("cpu", "Graviton")][int(rng.integers(3))]

    def edit(results: Results) -> None:
        for job, result in results.items():
            if job.rpartition("-s")[0] in cells:
                here = result["environment"]
                here[key] = value if key == "devices" else here["cpu"] | {"model": value}

    return rf"Ran on another machine than before, [^.]* to be judged: [^.]*\b{cells[0]}", edit


def lose_jobs(rng: Rng) -> Injected:
    """The jobs of a cell were not run."""
    cell = str(rng.choice([CELL, OTHER]))
    return f"{cell}/step_time", remove_jobs(cell)


KINDS: dict[str, Callable[[Rng], Injected]] = {
    "gone": drop_any,
    "one round is NaN": partial(put_any, values=(np.nan,)),
    "two rounds are infinite": partial(put_any, values=(np.inf, np.inf)),
    "all rounds are NaN": partial(put_all, value=np.nan),
    "zero": partial(put_all, value=0.0),
    "a broken curve": break_any_curve,
    "another name": rename_any,
    "another unit": partial(change_any_unit, factor=1e3),
    "another unit, the same number": partial(change_any_unit, factor=1.0),
    "another runner": switch_runner,
    "jobs that have not run": lose_jobs,
}
