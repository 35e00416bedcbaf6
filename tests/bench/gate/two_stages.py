"""What does the history judge say, night after night? Plays the two stages over many series at once.

In: log values of series (and their true level). Out: for each series the nights with an alarm, and how many runs the
pairs cost. The code under test is `screen_last_nights` and `decide`; only the runs are made up.
"""

from dataclasses import dataclass

import numpy as np

from nightjar_ci.formats.policy import HistoryPolicy
from nightjar_ci.judges.history.last_nights import LONGEST, screen_last_nights
from nightjar_ci.judges.history.screening import SINCE
from nightjar_ci.judges.performance.sequential import decide
from tests.bench.gate.noise import Array, Rng, draw_pairs

POLICY = HistoryPolicy()
FIRST = 20  # nights of history before the first one that is judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    alarms: Array
    suspicious: Array
    runs: int
    nights: int


def play(
    kind: str, values: Array, level: Array, rng: Rng, policy: HistoryPolicy = POLICY, nights: range | None = None
) -> Played:
    judged = range(FIRST, values.shape[1]) if nights is None else nights
    alarms, suspicious, runs = np.zeros(values.shape), np.zeros(values.shape), 0
    for night in judged:
        window = values[:, max(0, night + 1 - LONGEST - policy.window) : night + 1]
        hot = np.flatnonzero(screen_last_nights(window, policy.window, policy.floor).p <= policy.trigger)
        suspicious[hot, night] = 1
        change = level[night] - level[max(0, night - SINCE)]
        for case, ratios in zip(hot, change + draw_pairs(kind, len(hot), policy.looks[-1], rng), strict=True):
            decision = decide(list(ratios), policy)
            if decision is not None:
                runs += 2 * decision.pairs
                alarms[case, night] = {"regressed": 1, "improved": -1}.get(decision.status, 0)
    return Played(alarms=alarms, suspicious=suspicious, runs=runs, nights=len(judged) * len(values))


def looser(trigger: float, factor: float) -> HistoryPolicy:
    """The policy with another trigger, and every look's alpha multiplied."""
    alphas = tuple(min(0.4, factor * alpha) for alpha in POLICY.alphas)
    doubts = tuple(max(doubt, 1.5 * alpha) for doubt, alpha in zip(POLICY.doubts, alphas, strict=True))
    return POLICY.model_copy(update={"trigger": trigger, "alphas": alphas, "doubts": doubts})


def first_alarm(played: Played, change_at: int) -> Array:
    """After how many nights each series had its first alarm since the change (1 is the night itself); inf for never."""
    after = played.alarms[:, change_at:] > 0
    return np.where(after.any(axis=1), after.argmax(axis=1) + 1.0, np.inf)
