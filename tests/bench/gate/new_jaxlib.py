"""A new jaxlib: planted faults that hide behind it, and what pairs of released versions really do.

In: the plants, and released versions of jaxlib that uv installs beside this environment. Out: how many faults are
named although the run says that it has another jaxlib, and how many runs of one release are called regressed against a
baseline of another.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version as read_version
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.baselines.baseline import ConvergenceBaseline, make_convergence
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.judges.convergence.convergence import judge_convergence
from tests.bench.gate.convergence import CELL, FOUND, record
from tests.bench.gate.planted.faults import FAULTS
from tests.bench.gate.planted.faults_of_programs import HARMLESS_PROGRAMS, PROGRAM_FAULTS, REFERENCES, REPLICAS
from tests.bench.gate.planted.program import CONFIGS, Plant, train
from tests.bench.gate.planted.wrong_layers import allow_causal
from tests.bench.table import NotMeasuredError, Row

FLAX = "flax==0.12.6"  # of all releases, since others initialise otherwise: the last one that takes jax 0.9
RELEASES = ("0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.2")
SEEDS = range(10)
NAMED = f"faults named under a relabelled jaxlib (of {len(FAULTS) + len(PROGRAM_FAULTS)})"
HARMLESS = "harmless programs called regressed under a relabelled jaxlib"
RED = "runs called regressed over pairs of releases"

Curves = Mapping[int, NDArray[np.float64]]  # by seed


def list_goals(quick: bool = False) -> list[str]:
    return [NAMED, HARMLESS, RED]


def measure(quick: bool = False) -> list[Row]:
    """Rows of faults and of real pairs; a tenth trains one seed of each fault and three releases."""
    rows = measure_faults(SEEDS[:1] if quick else SEEDS[:4])
    try:
        rows += measure_releases(RELEASES[-3:] if quick else RELEASES)
    except NotMeasuredError as error:
        rows.append(Row(name=RED, lack=str(error)))
    return rows


def measure_faults(seeds: range) -> list[Row]:
    judged = {plant.name: judge_plant(plant, seeds) for plant in (*FAULTS, *PROGRAM_FAULTS)}
    named = 0
    for name, statuses in judged.items():
        share = float(np.mean([status == "regressed" for status in statuses]))
        if share < FOUND:
            print(f"not named: {name}: {', '.join(statuses)}", flush=True)
        named += share >= FOUND
    harmless = [status for plant in HARMLESS_PROGRAMS for status in judge_plant(plant, seeds)]
    return [
        Row(name=NAMED, ours=named, goal=27, better="higher"),
        Row(name=f"{HARMLESS} (of {len(harmless)} runs)", ours=harmless.count("regressed"), goal=0),
    ]


def judge_plant(plant: Plant, seeds: range) -> list[str]:
    baseline = make_own_baseline(plant.workload, plant.held_out)
    return [judge(baseline, "1", seed, train(plant, seed)) for seed in seeds]


@cache
def make_own_baseline(workload: str, held_out: bool) -> ConvergenceBaseline:
    return make_baseline("0", *(train_seeds(plants[workload, held_out]) for plants in (REFERENCES, REPLICAS)))


def train_seeds(plant: Plant) -> Curves:
    return {seed: train(plant, seed) for seed in SEEDS}


def measure_releases(versions: tuple[str, ...]) -> list[Row]:
    with TemporaryDirectory() as folder:
        curves = {version: train_with(version, Path(folder)) for version in versions}
    statuses = []
    for old, new in combinations(versions, 2):
        for workload, (seeds, again) in curves[old].items():
            baseline = make_baseline(old, seeds, again)
            told = [judge(baseline, new, seed, values) for seed, values in curves[new][workload][0].items()]
            if told != ["ok"] * len(told):
                print(f"{workload}, {old} and {new}: {', '.join(told)}", flush=True)
            statuses += told
    pairs = len(versions) * (len(versions) - 1) // 2
    name = f"{RED} ({pairs} pairs of {len(CONFIGS)} workloads, {len(statuses)} runs)"
    return [Row(name=name, ours=statuses.count("regressed"), goal=0)]


def train_with(version: str, folder: Path) -> dict[str, tuple[Curves, Curves]]:
    target, out = folder / version, folder / f"{version}.json"
    pins = (f"jax=={version}", f"jaxlib=={version}", FLAX)
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", target, *pins]
    path = os.pathsep.join(map(str, (target, Path.cwd())))
    environment = os.environ | {"PYTHONPATH": path, "JAX_TRACEBACK_FILTERING": "off"}
    for command in (install, [sys.executable, "-m", "tests.bench.gate.new_jaxlib", out]):
        try:
            subprocess.run(list(map(str, command)), check=True, env=environment, capture_output=True, text=True)
        except OSError as error:
            raise NotMeasuredError(f"{command[0]} cannot be started: {error}") from None
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise NotMeasuredError(f"jaxlib {version}: {last}") from None
    read = json.loads(out.read_text(encoding="utf-8"))
    if read["jaxlib"] != version:
        raise NotMeasuredError(f"jaxlib {version}: {read['jaxlib']} was imported")
    return {workload: (as_curves(seeds), as_curves(again)) for workload, (seeds, again) in read["curves"].items()}


def as_curves(written: Mapping[str, list[float]]) -> Curves:
    return {int(seed): np.array(values) for seed, values in written.items()}


def make_baseline(version: str, seeds: Curves, again: Curves) -> ConvergenceBaseline:
    runs, repeated = ([record(seed, values, version) for seed, values in by.items()] for by in (seeds, again))
    return make_convergence(CELL, ("train",), runs, repeated)


def judge(baseline: ConvergenceBaseline, version: str, seed: int, values: NDArray[np.float64]) -> str:
    return judge_convergence(CELL, "loss", [record(seed, values, version)], baseline, ConvergencePolicy()).status


def main() -> None:
    """Writes the curves of the jaxlib that is installed here to the file that is named."""
    with allow_causal():
        curves = train_all()
    written = {"jaxlib": read_version("jaxlib"), "curves": curves}
    Path(sys.argv[1]).write_text(json.dumps(written), encoding="utf-8")


def train_all() -> dict[str, list[dict[int, list[float]]]]:
    return {
        workload: [
            {seed: values.tolist() for seed, values in train_seeds(plants[workload, False]).items()}
            for plants in (REFERENCES, REPLICAS)
        ]
        for workload in CONFIGS
    }


if __name__ == "__main__":
    main()
