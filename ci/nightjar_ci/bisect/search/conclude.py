"""The stopping rule of the search, and the answer it gives.

In: the results so far. Out: a conclusion, or None while the search goes on. The ends are judged first, then the change
between them, then the budget.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nightjar_ci.bisect.search.information_gain import entropy
from nightjar_ci.bisect.search.luck import TOLD
from nightjar_ci.bisect.search.neighbours import median_interval
from nightjar_ci.bisect.search.next_probes import is_unlucky, luck_rungs
from nightjar_ci.bisect.search.noise import LEAST_RATE, Array
from nightjar_ci.bisect.search.results import MENTIONED, MOST_CHECKS, Results
from nightjar_ci.bisect.search.types import Conclusion, Kind, Level

ENDS_WRONG = 0.95  # doubt about the ends at which the search gives up: they are cheap to test again
ALIKE = 0.05  # largest change that counts as none, relative to the reference of pairs
REVERSED = 0.001  # doubt at which the good end is called worse: it is checked after every pair
RETURNED = 1.5  # times as much as the ends differ, if neighbours do, another rung takes a part of it back
WANTED_ODDS = 1000.0  # of two rates to one, about as many as the search wants before it leaves the ends
DRIFT_ENDS = 0.01  # doubt that the ends of a drift differ, by the signs of their pairs


def conclude(results: Results) -> Conclusion | None:
    """The answer, or None while the search goes on.

    >>> from nightjar_ci.bisect.search.next_probes import next_rungs
    >>> from nightjar_ci.bisect.search.types import Observation, SearchSettings
    >>> results = Results(8, SearchSettings(deterministic=True))
    >>> while (conclusion := conclude(results)) is None:
    ...     rung = next_rungs(results, 1, lambda rung: 1.0)[0]
    ...     results.add(Observation(rung=rung, outcome="bad" if rung >= 5 else "good"))
    >>> conclusion.culprit, conclusion.tests
    (5, 5)
    """
    for end, name in zip(results.ends, results.settings.names, strict=True):
        if results.skips(end):
            message = f"The {name} end cannot be tested: {results.misses[end]} tests could not tell."
            return answer(results, "unbuildable", message)
    if all(results.count(end) >= results.least for end in results.tested_ends):
        ends = judge_paired_ends(results) if results.settings.paired else judge_ends(results)
        conclusion = ends or judge_change(results)
        if conclusion is not None:
            return conclusion
    tests = len(results.observations)
    if tests >= results.settings.max_tests:
        return give_up(results, f"{tests} tests")
    return None


def judge_ends(results: Results) -> Conclusion | None:
    """A misjudged end, or no difference between the ends."""
    fitted = results.fit()
    if fitted.scale is None:
        return judge_failing_ends(results)
    low, high = (results.values[end][0] for end in results.ends)  # what is measured without pairs never varies
    first, last = results.settings.names
    seen = f"{low:.6g} at the {first} end, {high:.6g} at the {last} one"
    if low == high:
        return answer(results, "no_change", f"The ends do not differ: {seen}.", fitted.end_doubt)
    if (low > high) == (results.settings.metric == "lower"):
        return answer(results, "good_end_is_bad", f"{say_reversed(results)}: {seen}.", fitted.end_doubt)
    return None


def say_reversed(results: Results) -> str:
    first, last = results.settings.names
    return f"The {first} end is {'better' if results.settings.seeks_fix else 'worse'} than the {last} one"


def judge_failing_ends(results: Results) -> Conclusion | None:
    """The same for an exit code: a test that fails now and then is never said to be good, or to be the same."""
    good, bad = results.end_failures()
    doubt, low, high = results.fit().end_doubt, float(good.mean()), float(bad.mean())
    kinds: list[Kind] = ["good_end_is_bad", "bad_end_is_good"]
    good_is_bad, bad_is_good = reversed(kinds) if results.settings.seeks_fix else kinds
    if doubt >= ENDS_WRONG and low > 0.8:
        extra = ", and the bad end passes: are they swapped?" if high < 0.2 else "."
        return answer(results, good_is_bad, f"The good end fails {low:.0%} of {len(good)} tests{extra}", doubt)
    if doubt >= ENDS_WRONG and results.settings.deterministic:
        return answer(results, bad_is_good, "The bad end passes.", doubt)
    if not results.ends_are_tired() or results.ends_differ():
        return None
    if high == 0:
        passed, rate = f"The bad end passes all of {len(bad)} tests", results.settings.failure_rate
        if rate is not None:
            message = f"{passed}: that it fails in {rate:.3g} of them, or more, is ruled out."
            return answer(results, bad_is_good, message, (1 - rate) ** len(bad))
        below = 1 - (1 - results.settings.confidence) ** (1 / len(bad))
        more = 2 * len(bad)
        message = f"{passed}: it is good, or fails in less than {below:.0%} of them. About {more} more tests tell"
        return answer(results, "too_rare", f"{message} whether it fails in {below / 3:.0%}.")
    seen = f"{low:.0%} of {len(good)} tests fail at the good end and {high:.0%} of {len(bad)} at the bad one"
    return answer(results, "too_rare", f"{seen}: to tell them apart takes about {more_tests(good, bad)} more tests.")


def more_tests(good: Array, bad: Array) -> int:
    """More tests of both ends together, if they fail on as they did, until chance is ruled out."""
    low, high = ((values.sum() + 0.5) / (len(values) + 1) for values in (good, bad))
    rates = np.array([low, max(high, low + LEAST_RATE)])
    both = np.stack([1 - rates, rates], axis=1)
    information = entropy(both.mean(axis=0)) - entropy(both).mean()  # of one test
    return math.ceil(math.log(WANTED_ODDS) / float(information))


def judge_paired_ends(results: Results) -> Conclusion | None:
    """The same if the other end was paired with the reference: by signs, whatever the noise is."""
    good, bad = results.ends
    differences = results.differences(good, bad)
    doubt, pairs = results.fit().end_doubt, len(differences)
    undecided = results.ends_are_tired() and not results.ends_differ()
    is_worse = median_interval(differences, REVERSED)[1] < 0
    if doubt < ENDS_WRONG and not undecided and not is_worse:
        return None
    low, high = median_interval(differences)
    middle = float(np.median(differences))
    low, middle, high = (value / results.unit for value in (low, middle, high))
    seen = _describe_difference(results, low, middle, high, pairs)
    if is_worse:
        return answer(results, "good_end_is_bad", f"{say_reversed(results)}: {seen}.", doubt)
    if max(-low, high) <= ALIKE:
        return answer(results, "no_change", f"The ends do not differ: {seen}.", doubt)
    if not undecided:  # a few pairs more
        return None
    wanted = max(abs(middle), ALIKE)
    more = math.ceil(pairs * max(2.0, ((high - low) / 2 / wanted) ** 2))
    message = f"The machine is too loud to tell whether the ends differ: {seen}."
    return answer(results, "too_loud", f"{message} To see a change by {wanted:.0%} takes about {more} pairs.")


def _describe_difference(results: Results, low: float, middle: float, high: float, pairs: int) -> str:
    values = (-high, -middle, -low) if results.settings.metric == "higher" else (low, middle, high)
    if results.is_relative():
        values = (math.exp(values[0]) - 1, math.exp(values[1]) - 1, math.exp(values[2]) - 1)
    least, usual, most = values
    return f"from the first rung to the last it changes by {usual:+.1%} ({least:+.1%} to {most:+.1%} in {pairs} pairs)"


def judge_change(results: Results) -> Conclusion | None:
    fitted, shape = results.fit(), results.shape()
    if results.drifts() and results.settings.paired and results.ends_are_tired():
        return answer(results, "too_loud", "The machine is too loud to tell one step from a drift.")
    seen = not results.settings.paired or median_interval(results.differences(*results.ends), DRIFT_ENDS)[0] > 0
    if results.drifts() and seen:
        message = "There is no one step: the metric drifts from one level to the other, or in many small steps."
        return answer(results, "drift", message, shape.drift)
    gaps = results.concluded()
    if gaps and results.settings.paired and (loud := judge_checks(results, gaps)) is not None:
        return loud
    if not gaps or results.lacking(gaps) or results.odd_rung() is not None:
        return None
    if is_unlucky(results, gaps):
        return None if luck_rungs(results, gaps[0]) else judge_luck(results, gaps)
    if results.settings.paired and len(gaps) == 1 and fitted.mass[gaps[0]] < results.settings.sure:
        return None
    if len(gaps) == 2:
        assert shape.pair is not None
        if float(shape.pair.mass.max()) * shape.two < results.settings.confidence:
            return None
        names = " and ".join(name_gap(results, gap) for gap in gaps)
        probability = honest(results, float(shape.pair.mass.max()) * shape.two, gaps)
        message = f"There are two changes: at {names}, with probability {probability:.4f}."
        return answer(results, "two_changes", message, probability, gaps)
    probability = honest(results, float(fitted.mass[gaps[0]]), gaps)
    message = f"The change is at {name_gap(results, gaps[0])}, with probability {probability:.4f}."
    if results.settings.paired:
        low, high = (int(fitted.tested[at]) for at in (gaps[0] - 1, gaps[0]))
        message += f" {len(results.differences(low, high))} pairs tell it from rung {low}."
    found = answer(results, "culprit", message, probability, gaps)
    return replace(found, caveat=find_caveat(results, gaps[0]), remarks=tuple(remark(results, gaps[0])))


def remark(results: Results, gap: int) -> list[str]:
    """The number of neighbour pairs that agree, and the evidence for a second change."""
    remarks = []
    if results.settings.paired:
        neighbours, ends = differences_at(results, gap), results.differences(*results.ends)
        worse = "lower" if results.settings.metric == "higher" else "higher"
        count = int(np.sum(neighbours > 0))
        remarks.append(f"The value is {worse} in {count} of {len(neighbours)} pairs with the rung before, run in turn.")
        if len(ends) and median_interval(neighbours)[0] > max(RETURNED * float(ends.max()), 0.0):
            change = to_effect(results, float(np.median(ends)))
            size = f"{change:+.0%}" if results.is_relative() else f"{change:+.4g}"
            remarks.append(f"The ends differ by {size} only: another rung takes a part of the change back.")
        if results.ends == (0, 1):
            remarks.append("No other rung says by how much two builds of one code differ.")
    if results.shape().two > MENTIONED:
        remarks.append(f"A second change is not ruled out: its probability is {results.shape().two:.2f}.")
    return remarks


def find_caveat(results: Results, gap: int) -> str:
    """In words how sure the answer is if builds of one code differ, for sizes at which it is less than was asked for.

    The smallest of them, and the largest that is at most half of the change: the two show how fast it falls.
    """
    fitted = results.fit()
    if fitted.by_luck is None:  # exit codes know of none
        return ""
    doubted = [
        (size, f"{mass:.3f} by {format(size, '.0%' if results.is_relative() else '.4g')}")
        for size, mass in zip(np.unique(fitted.noise.luck), fitted.by_luck[gap], strict=True)
        if size > 0 and mass < results.settings.confidence
    ]
    half = abs(fitted.expected(gap)[0]) / 2
    shown = [*doubted[:1], *[one for one in doubted[1:] if one[0] <= half][-1:]]
    return ", ".join(text for _, text in shown).replace(" by ", " if builds of one code differ by ", 1)


def judge_checks(results: Results, gaps: tuple[int, ...]) -> Conclusion | None:
    """The conclusion that the machine is too noisy to check the answer's neighbours."""
    fitted = results.fit()
    for gap in gaps:
        low, high = int(fitted.tested[gap - 1]), int(fitted.tested[gap])
        value, pairs = results.e_value(gap), len(results.differences(low, high))
        needed = results.needed_for(gap)
        if value < needed and pairs >= MOST_CHECKS:
            message = (
                f"The machine is too loud: {pairs} pairs do not tell {name_gap(results, gap)} from the one before."
            )
            if value > 1.2:  # it grows, so more pairs will do
                more = math.ceil(pairs * math.log(needed) / math.log(value))
                message += f" It would take about {more} pairs."
            return answer(results, "too_loud", message, honest(results, float(fitted.mass[gap]), gaps), gaps)
    return None


def judge_luck(results: Results, gaps: tuple[int, ...]) -> Conclusion:
    """The conclusion that rungs differ by luck about as much as by the change."""
    smallest = TOLD * math.sqrt(2) * results.fit().luck
    size = f"{math.expm1(smallest):.1%}" if results.is_relative() else f"{smallest:.4g}"
    message = f"Rungs without a change between them differ, too: a change by less than {size} cannot be told from that."
    return answer(results, "too_loud", message, honest(results, float(results.fit().mass[gaps[0]]), gaps), gaps)


def honest(results: Results, mass: float, gaps: tuple[int, ...]) -> float:
    """The posterior of an answer, and no more than the check of its neighbours allows."""
    if not results.settings.paired:
        return mass
    doubts = (results.needed_for(gap) / results.needed / max(results.e_value(gap), 1e-9) for gap in gaps)
    return max(0.0, min(mass, *(1 - doubt for doubt in doubts)))


def name_gap(results: Results, gap: int) -> str:
    """`rung 4`, or `rungs 4 to 6 (which cannot be told apart)`."""
    first, last = int(results.fit().firsts[gap]), int(results.fit().lasts[gap])
    if first == last:
        return f"rung {first}"
    return f"rungs {first} to {last} (what is between cannot be tested)"


def differences_at(results: Results, gap: int) -> Array:
    """Differences of pairs of the two neighbours of a gap, as the search sees them; shape (pairs,)."""
    tested = results.fit().tested
    return results.differences(int(tested[gap - 1]), int(tested[gap]))


def find_effect_interval(results: Results, gap: int) -> tuple[float, float] | None:
    """Interval of the median effect between the neighbours of a gap, whatever the noise is."""
    if not results.settings.paired:
        return None
    low, high = median_interval(differences_at(results, gap))
    if not math.isfinite(low) or not math.isfinite(high):
        return None
    first, last = sorted((to_effect(results, low), to_effect(results, high)))
    return first, last


def to_effect(results: Results, difference: float) -> float:
    """A difference, as the search sees it, as an effect: a share of the good value, or a difference of values."""
    if results.settings.metric == "higher":
        difference = -difference
    if results.is_relative():
        return math.exp(difference) - 1
    return difference


def give_up(results: Results, spent: str) -> Conclusion:
    message = f"Not found within {spent}."
    gap = results.fit().best if results.values else 0
    if not gap:
        return answer(results, "budget_out", message)
    mass = float(results.fit().mass[gap])
    if results.settings.metric is None and mass > 0.5:  # each test takes the same part of the doubt away
        parts = math.log(1 - results.settings.sure) / math.log(max(1 - mass, 1e-12))
        more = math.ceil(len(results.observations) * max(parts - 1, 0.1))
        message += f" It would take about {more} tests more."
    return answer(results, "budget_out", message, honest(results, mass, (gap,)), (gap,))


def answer(
    results: Results, kind: Kind, message: str, probability: float = 0.0, gaps: tuple[int, ...] = ()
) -> Conclusion:
    """A conclusion with the numbers that a report wants."""
    tests, builds = len(results.observations), results.builds
    conclusion = Conclusion(kind=kind, message=message, probability=probability, tests=tests, builds=builds)
    if not gaps:
        return conclusion
    fitted, pair, middle = results.fit(), results.shape().pair, None
    places = [(int(fitted.firsts[gap]), int(fitted.lasts[gap])) for gap in gaps]
    good, bad = (results.in_unit(level) for level in fitted.levels(gaps[0]))
    if len(gaps) == 2 and pair is not None:
        sides = (pair.good, pair.middle, pair.bad)
        good, middle, bad = (results.in_unit(fitted.level(cells[0])) for cells in sides)
    relative = fitted.scale is not None and fitted.scale.log
    effect = bad.mean / good.mean - 1 if relative else bad.mean - good.mean
    interval = find_effect_interval(results, gaps[0]) if len(gaps) == 1 else None
    if interval is not None and not interval[0] <= effect <= interval[1]:  # neither level is a neighbour's
        effect = to_effect(results, float(np.median(differences_at(results, gaps[0]))))
        mean, low, high = (good.mean * (1 + by) if relative else good.mean + by for by in (effect, *interval))
        bad = Level(mean=mean, low=low, high=high)
    return replace(
        conclusion,
        culprits=places[0],
        second=places[1] if len(places) > 1 else None,
        good=good,
        bad=bad,
        middle=middle,
        effect=effect,
        effect_interval=interval,
        effect_is_relative=relative,
    )
