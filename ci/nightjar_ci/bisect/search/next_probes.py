"""The choice of the rungs to test next.

In: the results so far, the cost of each rung, and the number of tests that can start. Out: rungs, best first. The ends
come first. Then come the rungs whose tests are expected to tell most per cost. When an answer is sure, its neighbours
are tested again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nightjar_ci.bisect.search.information_gain import Places, entropy, information, information_of_two, rate
from nightjar_ci.bisect.search.noise import Array
from nightjar_ci.bisect.search.results import Results

OWN_RATE_TESTS = 40  # of a rung, after which more of them tell its own failure rate and not its side's
NEAR, NEAR_PAIRS = 6, 6  # rungs on each side of a change that are measured for their luck, and pairs of each
PLACES = 15  # places tried within a gap, the middle one of them


def next_rungs(results: Results, room: int, cost_of: Callable[[int], float], running: Sequence[int] = ()) -> list[int]:
    """The rungs to test next, best first; none if the search should wait for `running`.

    Args:
        room: number of tests that can start now.
        cost_of: of one test of a rung, its build included if it is not built yet.
        running: rungs that are being tested right now.
    """
    room = min(room, results.settings.max_tests - len(results.observations) - len(running))
    wanted = wanted_ends(results, running)
    if wanted or room <= 0 or not are_ends_done(results):
        return wanted[: max(room, 0)]
    taken = list(running)
    chosen = [rung for rung in urgent(results) if rung not in taken][:room]
    while len(chosen) < room:
        rung = best_rung(results, cost_of, [*taken, *chosen])
        if rung is None:
            break
        chosen.append(rung)
    return chosen


def wanted_ends(results: Results, running: Sequence[int]) -> list[int]:
    """Tests of the ends that come before any other: as often as must be, then while there is doubt about them."""
    counts = {end: results.count(end) + list(running).count(end) for end in reversed(results.tested_ends)}
    wanted = []
    while min(counts.values()) < results.least:
        end = min(counts, key=counts.__getitem__)
        counts[end] += 1
        wanted.append(end)
    if wanted or results.ends_are_tired() or sum(counts.values()) >= results.most_end_tests or results.ends_differ():
        return wanted
    gain = dict(zip(counts, gains(results, places_of(results, np.array(list(counts))))[0], strict=True))
    return sorted(counts, key=lambda end: -gain[end])


def are_ends_done(results: Results) -> bool:
    """Whether both ends were tested as often as must be, and differ: no rung inside is tested before."""
    return all(results.count(end) >= results.least for end in results.tested_ends) and results.ends_differ()


def urgent(results: Results) -> list[int]:
    """Rungs that must be run again anyway: neighbours of a sure answer, or a rung that fits neither level."""
    if results.settings.paired and results.drifts():  # it remains to show that its ends differ
        return list(results.tested_ends)
    gaps = results.concluded()
    lacking = results.lacking(gaps)
    odd = results.odd_rung() if gaps else None
    if not lacking and is_unlucky(results, gaps):
        lacking = luck_rungs(results, gaps[0])
    return lacking or ([] if odd is None else [odd])


def is_unlucky(results: Results, gaps: Sequence[int]) -> bool:
    """Whether the luck of rungs, and nothing else, leaves doubt about a change."""
    fitted = results.fit()
    if len(gaps) != 1 or fitted.by_luck is None:
        return False
    return float(fitted.mass[gaps[0]]) < results.settings.sure <= float(fitted.by_luck[gaps[0], 0])


def luck_rungs(results: Results, gap: int) -> list[int]:
    """The rung near a gap whose pairs tell most about how much rungs of one side differ; none if all were asked."""
    low, high = (int(rung) for rung in results.fit().tested[gap - 1 : gap + 1])
    near = {rung: away for away in range(NEAR) for rung in (low - away, high + away)}
    few = [rung for rung in near if 0 <= rung < results.n_rungs and rung != results.reference]
    few = [rung for rung in few if not results.skips(rung) and results.count(rung) < NEAR_PAIRS]
    return sorted(few, key=lambda rung: (results.count(rung), near[rung]))[:1]


def best_rung(results: Results, cost_of: Callable[[int], float], taken: list[int]) -> int | None:
    """The rung that tells most per cost; None if there is none left."""
    places = all_places(results)
    free = ~np.isin(places.rungs, taken)
    if not free.any():
        return None
    places = Places(places.rungs[free], places.gaps[free], places.lower[free])
    gain, most = gains(results, places)
    if taken:
        fresh = unasked(results, places, taken)
        gain, most = gain * fresh, most * fresh
    cost = np.array([max(cost_of(int(rung)), 1e-9) for rung in places.rungs])
    seen = np.isin(places.rungs, results.fit().tested)
    test = np.minimum(cost, cost[seen].min() if seen.any() else cost.min())
    return int(places.rungs[np.argmax(rate(gain, most, cost - test, test))])


def gains(results: Results, places: Places) -> tuple[Array, Array]:
    """The information of one test at each place, and of any number of tests, under the most probable shape."""
    fitted, shape = results.fit(), results.shape()
    if shape.pair is not None and shape.single < 0.5:
        gain, most = information_of_two(fitted.noise, shape.pair, places, len(fitted.mass))
    else:
        gain, most = information(fitted.noise, fitted.change, fitted.mass, places)
    seen = np.isin(places.rungs, fitted.tested)
    if fitted.scale is None and not results.settings.deterministic:
        counts = np.array([results.count(int(rung)) for rung in places.rungs])
        gain = gain * (OWN_RATE_TESTS / (OWN_RATE_TESTS + counts)) ** 2
    also = np.where(seen, results.shape_gains()[np.minimum(places.gaps, len(fitted.tested) - 1)], 0.0)
    return gain + also, most + also


def unasked(results: Results, places: Places, taken: list[int]) -> Array:
    """Share of each place's information that tests under way do not give too, as if no test erred; shape (places,)."""
    below = results.fit().at_or_before(places.gaps, places.lower)
    under_way = places_of(results, np.unique(taken))
    knots = np.concatenate([[0.0], np.sort(results.fit().at_or_before(under_way.gaps, under_way.lower)), [1.0]])
    after = np.clip(np.searchsorted(knots, below, side="right"), 1, len(knots) - 1)
    low, high = knots[after - 1], knots[after]
    inner = np.stack([below - low, high - below], axis=1) / np.maximum(high - low, 1e-12)[:, None]
    whole = np.stack([below, 1 - below], axis=1)
    return np.asarray(np.clip((high - low) * entropy(inner) / np.maximum(entropy(whole), 1e-12), 0.0, 1.0))


def all_places(results: Results) -> Places:
    """Rungs that may be tested: tested ones, and some in each gap, spread by prior mass."""
    fitted, shape, below = results.fit(), results.shape(), results.below
    mass = fitted.mass
    if shape.pair is not None and shape.single < 0.5:
        mass = np.add(*shape.pair.marginals(len(mass)))
    rungs = [fitted.tested]
    for gap in np.flatnonzero(mass[1:-1] > 1e-7) + 1:
        first, last = int(fitted.firsts[gap]), int(fitted.lasts[gap])
        inside = np.arange(first, last)
        if len(inside) > PLACES:
            shares = np.linspace(below[first], below[last + 1], PLACES + 2)[1:-1]
            at = np.searchsorted(below, shares)  # the first rung above each share, or the one before it
            inside = np.unique(np.clip(np.concatenate([at - 1, at - 2]), first, last - 1))
        rungs.append(inside)
    useful = [rung for rung in np.concatenate(rungs) if rung != results.reference and not results.skips(int(rung))]
    return places_of(results, np.array(useful, dtype=np.intp))


def places_of(results: Results, rungs: NDArray[np.intp]) -> Places:
    fitted, below = results.fit(), results.below
    gaps = np.searchsorted(fitted.tested, rungs)
    inner = below[rungs + 1] - below[fitted.firsts[gaps]]
    whole = below[fitted.lasts[gaps] + 1] - below[fitted.firsts[gaps]]
    return Places(rungs, gaps, np.divide(inner, whole, out=np.ones_like(inner), where=whole > 0))
