"""The value of testing a rung next: expected information about the culprit per cost.

In: the posterior over gaps, and the results to expect on either side. Out: the information of a test at each place, and
that information per cost. A test of rung r asks whether the culprit is at r or before. Its expected information is the
mutual information of its result and the gap. A rung that must be built first is credited with the tests that would
follow once it is there.

Source: Horstein, Sequential transmission using noiseless feedback (1963), and Burnashev and Zigangirov (1974), for
bisection under noise by the posterior; the choice by information per cost is greedy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.bisect.search.change_shapes import Shape, TwoChanges
from nightjar_ci.bisect.search.fit import OneChange
from nightjar_ci.bisect.search.noise import Array, Noise

REPEATS = np.arange(1, 41)  # tests that may follow a build


@dataclass(frozen=True, slots=True)
class Places:
    """Candidate places for a test.

    Attributes:
        rungs: shape (places,).
        gaps: the gap that each is in; for a tested rung the gap that ends there.
        lower: share of the gap's mass that is at the rung or before.
    """

    rungs: NDArray[np.intp]
    gaps: NDArray[np.intp]
    lower: Array


def entropy(p: Array) -> Array:
    return np.asarray(-np.sum(p * np.log(np.maximum(p, 1e-300)), axis=-1))


def information(noise: Noise, posterior: OneChange, mass: Array, places: Places) -> tuple[Array, Array]:
    """Expected information of one test at each place, in nats, and the most that any number of tests could tell."""
    table = noise.outcomes.reshape(len(noise.outcomes), -1).T
    gaps = len(mass)
    good = posterior.good.reshape(gaps, -1) @ table
    bad = posterior.bad.reshape(gaps, -1) @ table
    weighted_good, weighted_bad = mass[:, None] * good, mass[:, None] * bad
    noise_good, noise_bad = mass * entropy(good), mass * entropy(bad)
    before = np.cumsum(weighted_bad, axis=0) - weighted_bad
    after = weighted_good.sum(axis=0) - np.cumsum(weighted_good, axis=0)
    noise_before = np.cumsum(noise_bad) - noise_bad
    noise_after = noise_good.sum() - np.cumsum(noise_good)
    j, a = places.gaps, places.lower
    mixed = before[j] + a[:, None] * weighted_bad[j] + (1 - a)[:, None] * weighted_good[j] + after[j]
    expected = noise_before[j] + a * noise_bad[j] + (1 - a) * noise_good[j] + noise_after[j]
    lower = (np.cumsum(mass) - mass)[j] + a * mass[j]
    return np.maximum(entropy(mixed) - expected, 0.0), entropy(np.stack([lower, 1 - lower], axis=1))


def information_of_two(noise: Noise, two: TwoChanges, places: Places, gaps: int) -> tuple[Array, Array]:
    """Expected information of one test at each place about two changes, and the most that any number could tell."""
    table = noise.outcomes.reshape(len(noise.outcomes), -1).T
    sides = np.stack([cells[0].ravel() @ table for cells in (two.good, two.middle, two.bad)])
    since = []
    for marginal in two.marginals(gaps):
        before = np.cumsum(marginal) - marginal
        since.append(before[places.gaps] + places.lower * marginal[places.gaps])
    first, second = since
    shares = np.stack([1 - first, np.maximum(first - second, 0.0), second], axis=1)
    gain = entropy(shares @ sides) - shares @ entropy(sides)
    return np.maximum(gain, 0.0), entropy(shares)


def information_of_shape(noise: Noise, posterior: OneChange, mass: Array, shape: Shape) -> Array:
    """Expected information of one more test of each tested rung about one change, two, or a drift; shape (rungs,)."""
    rungs = len(mass) - 1
    if shape.pair is None or shape.ramp is None:
        return np.zeros(rungs)
    table = noise.outcomes.reshape(len(noise.outcomes), -1).T
    good = mass[:, None] * (posterior.good.reshape(rungs + 1, -1) @ table)
    bad = mass[:, None] * (posterior.bad.reshape(rungs + 1, -1) @ table)
    single = np.cumsum(bad, axis=0)[:-1] + good.sum(axis=0) - np.cumsum(good, axis=0)[:-1]
    two = shape.pair.forecast(noise.outcomes, rungs)
    ramp = np.concatenate([single[:1], shape.ramp.forecast(noise.outcomes), single[-1:]])
    forecasts = np.stack([single, two, ramp])
    shares = np.array([shape.single, shape.two, shape.drift])
    return np.maximum(entropy(np.einsum("s,sro->ro", shares, forecasts)) - shares @ entropy(forecasts), 0.0)


def rate(gain: Array, most: Array, build: Array, test: Array) -> Array:
    """Information per cost, with as many tests after a build as pay."""
    left = 1 - np.minimum(gain / np.maximum(most, 1e-300), 1.0)
    repeated = most[:, None] * (1 - left[:, None] ** REPEATS)
    best = repeated / (build[:, None] + test[:, None] * REPEATS)
    return np.where(build > 0, best.max(axis=1), gain / test)
