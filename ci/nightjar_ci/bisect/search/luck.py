"""The luck of a rung: two builds of the same code differ by a little, whichever runs first and however often they run.

In: the noise grid of pairs and the likelihood of each rung's results. Out: both, given that each rung has an offset of
its own from the level of its side. Results of one rung, however many, are one draw of its offset; how large offsets
are is integrated out, so rungs of one side tell it. Large offsets are rare: those of layout and link order are a few
per cent.

Source: a random effect for each group (Searle, Casella and McCulloch, Variance Components, 1992); how much layout and
link order matter is in Mytkowicz and others, Producing wrong data without doing anything obviously wrong (2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nightjar_ci.bisect.search.neighbours import likelihood_ratios
from nightjar_ci.bisect.search.noise import Array, Noise

# Standard deviations of offsets, in logs or relative to the metric's usual value, and their prior.
SIZES = np.array([0.0, 0.01, 0.02, 0.04, 0.1])
PRIOR = np.array([0.88, 0.04, 0.03, 0.03, 0.02])
TOLD = 3.3  # offsets by which a change must differ from none to be told at 0.99, with rungs on both sides


def add_luck(noise: Noise, log_likelihood: Array, unit: float) -> tuple[Noise, Array]:
    """The grid with each scale once for each size of the offsets, and the likelihood of a rung's side on it.

    Args:
        log_likelihood: of each rung's own level; shape (rungs, scales, levels).
        unit: of the offsets: 1 for logarithms, else the metric's usual value.
    """
    away = noise.levels[:, None] - noise.levels
    outcomes, likelihoods = [], []
    top = log_likelihood.max(axis=2, keepdims=True)
    for size in SIZES * unit:
        spread = np.exp(-0.5 * np.clip(away / size, -40, 40) ** 2) if size else np.eye(len(away))
        spread /= spread.sum(axis=1, keepdims=True)
        outcomes.append(noise.outcomes @ spread.T)
        likelihoods.append(top + np.log(np.maximum(np.exp(log_likelihood - top) @ spread.T, 1e-300)))
    count = len(SIZES)
    lucky = replace(
        noise,
        scales=np.tile(noise.scales, count),
        pairs=np.tile(noise.pairs, (count, 1, 1)),
        log_scale=(np.log(PRIOR)[:, None] + noise.log_scale).ravel(),
        outcomes=np.concatenate(outcomes, axis=1),
        tails=np.tile(noise.tails, count),
        widths=np.tile(noise.widths, count),
        luck=np.repeat(SIZES * unit, len(noise.scales)),
    )
    return lucky, np.concatenate(likelihoods, axis=1)


def weigh_neighbours(
    differences: Array, changes: Sequence[float], doubt: float, noise: Noise, scale: int, seen: tuple[Array, Array]
) -> tuple[Array, Array]:
    """How well pairs of two neighbours fit with no change between them, and with one; shape (scales,) each.

    Both are relative to neighbours that are equal.

    Args:
        differences: culprit minus the rung before.
        changes: expected difference, or several that are equally probable.
        doubt: standard deviation of the expected one.
        seen: log-likelihood of the levels of the rung before and of the culprit by pairs with the reference, which
            have counted these two offsets already; shape (levels,) each.
    """
    step = noise.levels[1] - noise.levels[0]
    offsets = step * np.arange(1 - len(noise.levels), len(noise.levels))
    low, high = (np.exp(table - table.max()) for table in seen)
    before = np.maximum(np.correlate(high, low, "full"), 1e-300)  # of each offset between the two
    ratios = likelihood_ratios(differences, offsets, noise, scale)
    fits = {}
    for size in np.unique(noise.luck):
        known = np.ones(len(before)) if math.sqrt(2) * size < step else before
        likely = []
        for by, more in ((0.0, 0.0), *((change, doubt) for change in changes)):
            normal = known * np.exp(-((offsets - by) ** 2) / 2 / (2 * size**2 + more**2 + (step / 4) ** 2))
            likely.append(float(normal @ ratios) / max(float(normal.sum()), 1e-300))
        fits[size] = likely[0], float(np.mean(likely[1:]))
    equal, changed = np.array([fits[size] for size in noise.luck]).T
    return equal, changed
