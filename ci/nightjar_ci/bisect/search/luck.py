"""The luck of a rung: two builds of the same code differ by a little, whichever runs first and however often they run.

In: all pairs of a ladder, and the gap of a change. Out: the probability that the change is there, and the smallest
change that could be told from such luck. Each rung has an offset of its own besides the level of its side, so results
of one rung, however many, are one draw of it; how large offsets are is learned from rungs of the same side. Linear and
Gaussian, with the noise of pairs by the spread of those of the same two rungs, outliers clipped.

Source: a random effect for each group (Searle, Casella and McCulloch, Variance Components, 1992), with its size
integrated over a prior; what no pair of neighbours can tell by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.bisect.search.change_shapes import TWO
from nightjar_ci.bisect.search.noise import Array, within_spread

if TYPE_CHECKING:
    from nightjar_ci.bisect.search.results import Results

# Sizes of the offsets in logs, and their prior: most ladders have none; compilers and linkers move 1 to 3 %, and a mode
# that sticks to a process or a page layout more.
SIZES = np.array([0.0, 0.005, 0.01, 0.02, 0.03, 0.06, 0.12])
PRIOR = np.array([0.6, 0.1, 0.1, 0.08, 0.06, 0.03, 0.03])
STEP = 0.3  # expected size of a change, in logs
RUNGS, PAIRS = 6, 6  # rungs on each side of a change that are measured for their luck, and pairs of each
OUTLIER = 4.0  # standard deviations
TOLD = 3.3  # offsets by which a change must differ from none to be told at 0.99, with rungs on both sides


@dataclass(frozen=True, slots=True)
class Luck:
    """What the offsets of rungs leave of an answer.

    Attributes:
        mass: probability of each gap that the pairs could tell, 0 and the last of which say that an end is misjudged.
        size: expected standard deviation of an offset, on the scale of the search.
    """

    mass: Array
    size: float

    @property
    def smallest(self) -> float:
        """The smallest change that could be told from luck."""
        return TOLD * math.sqrt(2) * self.size


def luck_of(results: Results, gap: int, gaps: Sequence[int]) -> Luck:
    """What the luck of rungs leaves of a gap's change, given the other one of two."""
    key = (len(results.observations), gap, tuple(gaps))
    if key in results.lucks:
        return results.lucks[key]
    fitted, unit = results.fit(), 1.0 if results.is_relative() else max(abs(results.usual_reference()), 1e-300)
    tested = {int(rung) for rung in fitted.tested}
    places = {(min(pair), max(pair)) for pair in results.pairs if {*pair} <= tested}
    differences = {(low, high): results.differences(low, high) for low, high in sorted(places)}
    other = next((number for number in gaps if number != gap), None)
    luck = weigh_luck(differences, fitted.tested, fitted.gap_prior, unit=unit, other=other)
    results.lucks = {key: luck, **{earlier: at for earlier, at in results.lucks.items() if earlier[0] == key[0]}}
    return luck


def find_unlucky(results: Results, gaps: Sequence[int]) -> list[Luck]:
    """The luck of gaps that it leaves too little of."""
    every = [(gap, luck_of(results, gap, gaps)) for gap in gaps]
    return [luck for gap, luck in every if luck.mass[gap] < results.settings.sure]


def luck_rungs(results: Results, gaps: Sequence[int]) -> list[int]:
    """The rung near gaps whose pairs tell most about how much rungs of one side differ; none if that is known."""
    if not find_unlucky(results, gaps):
        return []
    fitted = results.fit()
    near: dict[int, int] = {}
    for gap in gaps:
        low, high = int(fitted.tested[gap - 1]), int(fitted.tested[gap])
        for away in range(RUNGS):
            near |= {rung: away for rung in (low - away, high + away) if rung not in near}
    few = [rung for rung in near if 0 <= rung < results.n_rungs and rung != results.reference]
    few = [rung for rung in few if not results.skips(rung) and results.count(rung) < PAIRS]
    return sorted(few, key=lambda rung: (results.count(rung), near[rung]))[:1]


def weigh_luck(
    differences: Mapping[tuple[int, int], Array],
    tested: NDArray[np.intp],
    gap_prior: Array,
    *,
    unit: float,
    other: int | None,
) -> Luck:
    """The probability of each gap, given that rungs have offsets.

    Args:
        differences: later rung minus earlier one, of the pairs of each two rungs (earlier, later).
        tested: rungs, ascending.
        gap_prior: of one change; shape (rungs + 1,).
        unit: of the differences: 1 for logarithms, else the metric's usual value.
        other: the gap of another change, whose size is unknown too.
    """
    index = {int(rung): at for at, rung in enumerate(tested)}
    usable = without_outliers(differences)
    kept = [(index[low], index[high], values) for (low, high), values in usable.items() if len(values)]
    spread, _ = within_spread([values for _, _, values in kept])
    design = np.zeros((len(kept), len(tested)))
    for row, (low, high, _) in enumerate(kept):
        design[row, low], design[row, high] = -1.0, 1.0
    means = np.array([values.mean() for _, _, values in kept])
    counts = np.array([len(values) for _, _, values in kept], dtype=np.float64)
    gaps = len(tested) + 1
    at = np.arange(len(tested))
    steps = np.stack([design @ (at >= gap) for gap in range(gaps)])
    second = np.zeros_like(steps) if other is None else np.broadcast_to(steps[other], steps.shape)
    log = np.full((2, len(SIZES), gaps), -np.inf)  # of one change, and of the two
    for number, size in enumerate(SIZES * unit):
        luck = size**2 * design @ design.T + np.diag(np.maximum(spread, 1e-6 * unit) ** 2 / counts)
        for gap in range(1, gaps - 1):
            single = luck + (STEP * unit) ** 2 * np.outer(steps[gap], steps[gap])
            log[0, number, gap] = _log_density(means, single)
            if other not in (None, gap):
                double = single + (STEP * unit) ** 2 * np.outer(second[gap], second[gap])
                log[1, number, gap] = _log_density(means, double)
    with np.errstate(divide="ignore"):
        log += np.log(PRIOR)[:, None] + np.log(gap_prior)
        log[1] += math.log(TWO) + (0.0 if other is None else math.log(gap_prior[other]))
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mass = weights[0 if other is None else 1].sum(axis=0)
    return Luck(mass=np.asarray(mass), size=float(weights.sum(axis=(0, 2)) @ SIZES) * unit)


def without_outliers(differences: Mapping[tuple[int, int], Array]) -> dict[tuple[int, int], Array]:
    """Pairs no further out than any rung's median by far: of the others, something disturbed one run."""
    repeated = [values for values in differences.values() if len(values) > 2]
    if not repeated:
        return dict(differences)
    residuals = np.concatenate([values - np.median(values) for values in repeated])
    core = 1.4826 * float(np.median(np.abs(residuals))) * math.sqrt(len(residuals) / (len(residuals) - len(repeated)))
    reach = max(abs(float(np.median(values))) for values in repeated) + OUTLIER * core
    return {place: values[np.abs(values) <= reach] for place, values in differences.items()}


def _log_density(values: Array, covariance: Array) -> float:
    """Of a normal distribution about zero, up to a constant."""
    return float(-values @ np.linalg.solve(covariance, values) / 2 - np.linalg.slogdet(covariance)[1] / 2)
