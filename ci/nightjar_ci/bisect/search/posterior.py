"""The posterior of one change between two unknown levels, given results of some rungs.

In: a grid of log-likelihoods for each tested rung, and a prior over culprits. Out: the probability of each gap between
tested rungs, and the distribution of the level on either side of the change.

Culprits between the same two tested rungs have the same likelihood, so the posterior is a mass for each *gap* times the
prior within it. Gap j lies between tested rungs j - 1 and j: if the culprit is in it, tested rungs before j are good
and the others bad. Gap 0 means that all tested rungs are bad, the last gap that all are good. Levels and scale are
integrated over their grid, with the bad level at least `least_change` above the good one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nightjar_ci.bisect.search.noise import Array, Noise


@dataclass(frozen=True, slots=True)
class OneChange:
    """The posterior under one change.

    Attributes:
        log_evidence: of the results for each gap, levels integrated out; shape (gaps,).
        good, bad: probability of a grid cell for the level of either side, given the gap; shape (gaps, scales, levels).
    """

    log_evidence: Array
    good: Array
    bad: Array

    def mass(self, prior: Array) -> Array:
        """Probability of each gap, given the prior's; shape (gaps,)."""
        with np.errstate(divide="ignore"):
            log = np.log(prior) + self.log_evidence
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


def one_change(noise: Noise, log_likelihood: Array) -> OneChange:
    """Integrates out the levels.

    Args:
        log_likelihood: of all results of each tested rung; shape (rungs, scales, levels).
    """
    total = np.zeros((len(log_likelihood) + 1, *log_likelihood.shape[1:]))
    np.cumsum(log_likelihood, axis=0, out=total[1:])
    good, bad = total, total[-1] - total
    top_good = good.max(axis=2, keepdims=True)
    top_bad = bad.max(axis=2, keepdims=True)
    good = np.exp(good - top_good)
    bad = np.exp(bad - top_bad)
    of_bad = np.matmul(noise.pairs, bad[..., None])[..., 0]  # for each good level, summed over the bad ones
    of_good = np.matmul(noise.pairs.swapaxes(1, 2), good[..., None])[..., 0]
    good *= of_bad
    bad *= of_good
    each = np.maximum(good.sum(axis=2), 1e-300)
    log_scale = (top_good + top_bad)[..., 0] + np.log(each) + noise.log_scale
    top = log_scale.max(axis=1, keepdims=True)
    weights = np.exp(log_scale - top)
    evidence = top[:, 0] + np.log(weights.sum(axis=1))
    weights /= weights.sum(axis=1, keepdims=True)
    share = (weights / each)[..., None]
    return OneChange(evidence, good * share, bad * share)
