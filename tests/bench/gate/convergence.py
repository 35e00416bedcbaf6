"""How many planted faults does one paired seed find, and how often is a harmless change called broken?

Baselines are made as `nightjar-ci baseline` makes them, of ten seeds and their replicas; each run is then judged alone
by the whole convergence judge. The rival is JAX-Toolbox's rule: the first nine losses within 10 % of the baseline's.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.baselines.baseline import ConvergenceBaseline, make_convergence
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.judges.convergence.convergence import judge_convergence
from tests.bench.gate.planted.faults import DECLARED, FAULTS, HARMLESS, REFERENCE, permuted
from tests.bench.gate.planted.program import Plant, train
from tests.bench.table import Row
from tests.ci import nights

SEEDS = range(10)
ORDERS = range(1, 9)  # further orders of the batches, none of which made the baseline
FOUND = 0.75  # of the seeds, each alone, for a fault to count as found
LOOKED_AT = range(20, 25)  # seeds that show how far bfloat16 goes on this processor, before it is declared
CELL = "planted"


def list_goals(quick: bool = False) -> list[str]:
    return [
        "planted faults found by one paired seed",
        "harmless changes called broken",
        "declared bfloat16 called broken",
    ]


def measure(quick: bool = False) -> list[Row]:
    """Trains everything and judges it: about eight minutes on two cores, half of it in bfloat16."""
    seeds = SEEDS
    known = make_convergence(
        CELL,
        ("train",),
        [record(seed, train(REFERENCE, seed)) for seed in seeds],
        [record(seed, train(HARMLESS[0], seed)) for seed in seeds],
    )
    departures = [np.abs(np.log(train(DECLARED, seed) / train(REFERENCE, seed))).max() for seed in LOOKED_AT]
    policy, declared = ConvergencePolicy(), ConvergencePolicy(paired_rtol=2 * float(max(departures)))
    tried = seeds[:4] if quick else seeds
    found = {plant.name: rate(plant, tried, known, policy) for plant in FAULTS}
    found_bf16 = {
        plant.name: rate(plant, tried[:5], known, declared, bf16=True)
        for plant in FAULTS
        if not plant.bf16 and not quick
    }
    theirs = {plant.name: np.mean([toolbox_fails(plant, seed) for seed in tried]) for plant in FAULTS}
    orders = [
        Plant(name=f"order {number}", batches=functools.partial(permuted, number=number), program=REFERENCE)
        for number in (ORDERS[:1] if quick else ORDERS)
    ]
    harmless = [rate(plant, tried, known, policy) for plant in (*HARMLESS[1:], *orders)]
    bf16 = rate(DECLARED, tried, known, declared)
    their_alarms = np.mean(
        [
            relative(train(REFERENCE, seed), train(REFERENCE, other))
            for seed in tried
            for other in tried
            if seed != other
        ]
    )
    rival = "JAX-Toolbox rule"
    rows = [
        Row(
            name=f"planted faults found by one paired seed (of {len(FAULTS)})",
            ours=sum(share >= FOUND for share in found.values()),
            goal=13,
            better="higher",
            rival=rival,
            rival_value=float(sum(share >= FOUND for share in theirs.values())),
        ),
        Row(
            name=f"harmless changes called broken ({len(harmless) * len(tried)} runs)",
            ours=100 * float(np.mean(harmless)),
            goal=1.0,
            unit="%",
            rival=f"{rival}, another seed",
            rival_value=100 * float(their_alarms),
        ),
        Row(name=f"declared bfloat16 called broken ({len(tried)} runs)", ours=100 * bf16, goal=1.0, unit="%"),
    ]
    if found_bf16:
        reached = sum(share >= FOUND for share in found_bf16.values())
        rows.append(Row(name=f"faults found where bfloat16 is declared (of {len(found_bf16)})", ours=reached))
    return rows


def rate(
    plant: Plant, seeds: Sequence[int], known: ConvergenceBaseline, policy: ConvergencePolicy, *, bf16: bool = False
) -> float:
    plant = plant.in_bf16() if bf16 else plant
    verdicts = [judge_convergence(CELL, "loss", [record(seed, train(plant, seed))], known, policy) for seed in seeds]
    return float(np.mean([verdict.status == "regressed" for verdict in verdicts]))


def toolbox_fails(plant: Plant, seed: int) -> bool:
    return relative(train(plant, seed), train(REFERENCE, seed))


def relative(new: NDArray[np.float64], old: NDArray[np.float64]) -> bool:
    """Whether any of nine evenly spaced losses differs by more than 10 %."""
    at = np.linspace(0, len(old) - 1, 9).round().astype(int)
    return bool((np.abs(new[at] / old[at] - 1) > 0.1).any())


def record(seed: int, losses: NDArray[np.float64], jaxlib: str = "0") -> RunRecord:
    """A run on a processor that no baseline knows."""
    run = nights.record(seed, values=losses.tolist(), job=f"{CELL}-s{seed}", jaxlib=jaxlib)
    cpu = run.environment.cpu.model_copy(update={"architecture": None, "instructions": None})
    return run.model_copy(update={"environment": run.environment.model_copy(update={"cpu": cpu})})
