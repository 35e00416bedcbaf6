"""Real pairs of one program against itself: is one called slower or faster, and is what is slower found?

In: runs of a small training in fresh processes, two by two, made here and now. Out: false verdicts of the performance
judge, over the stretches of pairs as they followed each other (the machine's loud hours included) and over pairs drawn
at random, and how many stretches are red where one side is made 5 % slower. It takes half an hour on two cores.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nightjar_ci.formats.policy import PerformancePolicy
from nightjar_ci.judges.performance.performance import Pair, judge_performance, log_ratio
from tests.bench.table import NotMeasuredError, Row
from tests.ci.nights import CELL, record

PAIRS, QUICK_PAIRS, DRAWS = 500, 40, 10_000
POLICY = PerformancePolicy()
BUDGET = POLICY.looks[-1]
STATED = 1000 * 2 * sum(POLICY.alphas)  # slower and faster together, in 1,000 comparisons
SLOWER = 1.05
FALSE = ("regressed", "improved")
SEED = 20261127
TIMEOUT_S = 120
PROGRAM = """
import json, time
import jax
import jax.numpy as jnp
import numpy as np

def loss(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return (x**2).mean()

@jax.jit
def step(weights, x):
    gradients = jax.grad(loss)(weights, x)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]

rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.normal(size=(256, 256)) / 16, jnp.float32) for _ in range(4)]
x = jnp.asarray(rng.normal(size=(128, 256)), jnp.float32)
seconds = []
for _ in range(60):
    began = time.perf_counter()
    weights = jax.block_until_ready(step(weights, x))
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""


def list_goals(quick: bool = False) -> list[str]:
    pairs = QUICK_PAIRS if quick else PAIRS
    return [
        f"false verdicts in 1,000 comparisons, of stretches of {pairs} real pairs",
        f"false verdicts in 1,000 comparisons, of {DRAWS:,} draws of {BUDGET} of them, sides swapped at random",
    ]


def measure(quick: bool = False) -> list[Row]:
    pairs = [make_pair(number) for number in range(QUICK_PAIRS if quick else PAIRS)]
    rng = np.random.default_rng(SEED)
    stretches = [pairs[start : start + BUDGET] for start in range(len(pairs) - BUDGET + 1)]
    draws = [draw(pairs, rng) for _ in range(DRAWS)]
    spread = float(np.std([log_ratio(pair, "step_time") or 0.0 for pair in pairs]))
    rows = [
        Row(name=name, ours=1000 * sum(judge(pairs) in FALSE for pairs in some) / len(some), goal=STATED)
        for name, some in zip(list_goals(quick), (stretches, draws), strict=True)
    ]
    found = sum(judge([slow_down(pair) for pair in stretch]) == "regressed" for stretch in stretches)
    return [
        *rows,
        Row(name="  noise of a pair: standard deviation of its ratio", ours=100 * spread, unit="%"),
        Row(
            name=f"  stretches that are red where one side is {SLOWER - 1:.0%} slower",
            ours=100 * found / len(stretches),
            better="higher",
            unit="%",
        ),
    ]


def draw(pairs: Sequence[Pair], rng: np.random.Generator) -> list[Pair]:
    """Pairs drawn at random, each with its sides swapped at random: whatever the two runs share, neither is slower."""
    drawn = [pairs[place] for place in rng.choice(len(pairs), BUDGET, replace=False)]
    return [
        replace(pair, candidate=pair.reference, reference=pair.candidate) if swapped else pair
        for pair, swapped in zip(drawn, rng.random(BUDGET) < 0.5, strict=True)
    ]


def make_pair(number: int) -> Pair:
    """Two runs in fresh processes, the candidate first in every second pair."""
    first, second = time_program(), time_program()
    if number % 2:
        first, second = second, first
    if number % 50 == 49:
        print(f"{number + 1} pairs", file=sys.stderr, flush=True)
    return Pair(number=number, candidate=record(step_times=first), reference=record(step_times=second))


def time_program() -> list[float]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if ended.returncode != 0:
        raise NotMeasuredError(f"the program ends with {ended.returncode}: {ended.stderr[-300:]}")
    seconds: list[float] = json.loads(ended.stdout)
    return seconds


def slow_down(pair: Pair) -> Pair:
    sample = None if pair.candidate is None else pair.candidate.sample("step_time")
    assert sample is not None
    return replace(pair, candidate=record(step_times=[SLOWER * value for value in sample.values]))


def judge(pairs: Sequence[Pair]) -> str:
    return judge_performance(CELL, pairs, "the same", POLICY).status
