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
NIGHTS, AT, SEED = 120, 60, 20261121  # of the parts `false_alarms` and `power`: nights, that of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    alarms: Array
    runs: int
    nights: int


def play(kind: str, values: Array, level: Array, rng: Rng, nights: range | None = None) -> Played:
    judged = range(FIRST, values.shape[1]) if nights is None else nights
    alarms, runs = np.zeros(values.shape), 0
    for night in judged:
        window = values[:, max(0, night + 1 - LONGEST - POLICY.window) : night + 1]
        hot = np.flatnonzero(screen_last_nights(window, POLICY.window, POLICY.floor).p <= POLICY.trigger)
        change = level[night] - level[max(0, night - SINCE)]
        for case, ratios in zip(hot, change + draw_pairs(kind, len(hot), POLICY.looks[-1], rng), strict=True):
            decision = decide(list(ratios), POLICY)
            if decision is not None:
                runs += 2 * decision.pairs
                alarms[case, night] = {"regressed": 1, "improved": -1}.get(decision.status, 0)
    return Played(alarms=alarms, runs=runs, nights=len(judged) * len(values))


def first_alarm(played: Played, change_at: int) -> Array:
    """After how many nights each series had its first alarm since the change (1 is the night itself); inf for never."""
    after = played.alarms[:, change_at:] > 0
    return np.where(after.any(axis=1), after.argmax(axis=1) + 1.0, np.inf)
