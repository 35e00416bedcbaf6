"""How often does a whole night of unchanged series raise a false alarm? Nights of 500 series through all of the judge.

In: seeded series of every noise model, each judged for one night by `judge_history` as `gate` does it, the suspicious
ones re-run. Out: the share of nights with a false alarm, with and without weighing the night's verdicts together.
"""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from nightjar_ci.formats.policy import NightPolicy
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.false_discovery import adjust_for_night
from nightjar_ci.judges.history.history import judge_screened
from nightjar_ci.judges.performance.sequential import decide
from tests.bench.gate.noise import NOISES, Array, draw_nights, draw_pairs
from tests.bench.gate.two_stages import POLICY
from tests.bench.table import Row
from tests.ci.judges.judged import make_series, screen_series

SERIES, NIGHTS_OF_HISTORY = 500, 130
MONTH = 30


def list_goals(quick: bool = False) -> list[str]:
    return [f"nights with a false alarm in a month, {how}" for how in ("pairs decide", "history alone")]


def measure(quick: bool = False) -> list[Row]:
    nights = 12 if quick else 120
    with ProcessPoolExecutor(2) as pool:
        judged = list(pool.map(judge, range(nights)))
    alarms, plain, alone, doubts = (np.array(column) for column in zip(*judged, strict=True))
    per_month = MONTH / nights
    return [
        Row(
            name="nights with a false alarm in a month, pairs decide",
            ours=per_month * float((alarms > 0).sum()),
            goal=1,
        ),
        Row(name="the same without weighing the night as a whole", ours=per_month * float((plain > 0).sum())),
        Row(
            name="nights with a false alarm in a month, history alone",
            ours=per_month * float((alone > 0).sum()),
            goal=1,
        ),
        Row(name="nights with a doubt in a month, history alone", ours=per_month * float((doubts > 0).sum())),
    ]


def judge(number: int) -> tuple[int, int, int, int]:
    """One night: alarms with pairs, the same unweighed, alarms of history alone, its doubts."""
    rng = np.random.default_rng([500, number])
    confirmed, alone = [], []
    for place in range(SERIES):
        noise = NOISES[place % len(NOISES)]
        series = make(draw_nights(noise, 1, NIGHTS_OF_HISTORY, rng)[0], place)
        screened = screen_series(series, POLICY)
        assert screened is not None
        verdict = judge_screened(screened)
        alone.append(verdict)
        confirmed.append(rerun(verdict, noise, rng) if screened.needs_rerun else verdict)
    weighed = adjust_for_night(confirmed, NightPolicy())
    by_history = adjust_for_night(alone, NightPolicy())
    return (
        count(weighed, "regressed"),
        count(confirmed, "regressed"),
        count(by_history, "regressed"),
        count(by_history, "cannot_tell"),
    )


def rerun(verdict: Verdict, noise: str, rng: np.random.Generator) -> Verdict:
    decision = decide(list(draw_pairs(noise, 1, POLICY.looks[-1], rng)[0]), POLICY)
    assert decision is not None
    return verdict.model_copy(update={"status": decision.status, "p": min(1.0, POLICY.trigger * decision.p)})


def make(values: Array, place: int) -> Series:
    return make_series(0.2 * np.exp(values), f"cell-{place}/step_time")


def count(verdicts: list[Verdict], status: str) -> int:
    return sum(verdict.status == status for verdict in verdicts)
