"""How often does the history judge cry wolf on unchanged series, and what do its re-runs cost?"""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

from nightjar_ci.judges.history.change_points import find_changes
from tests.bench.gate.noise import CLEAN, DIRTY, NOISES, Array, draw_nights
from tests.bench.gate.rival_rules import RULES
from tests.bench.gate.rivals import ask_rivals
from tests.bench.gate.two_stages import AT, FIRST, NIGHTS, SEED, play
from tests.bench.table import Row

PER_CLEAN, PER_DIRTY = 0.05, 0.2  # in 1,000 nights
PAIRED, ALONE = 3000, 910  # series of each noise


def list_goals(quick: bool = False) -> list[str]:
    by_noise = [f"{stage}, {noise}" for noise in NOISES for stage in ("two stages", "history alone")]
    return [*by_noise, "mean of clean noise", "mean of dirty noise", "extra runs a night, median of noise models"]


def measure(quick: bool = False) -> list[Row]:
    paired, alone = (n // 10 if quick else n for n in (PAIRED, ALONE))
    with ProcessPoolExecutor(2) as pool:
        both = dict(zip(NOISES, pool.map(judge_null, NOISES, [paired] * len(NOISES)), strict=True))
        lasting = dict(zip(NOISES, pool.map(judge_alone, NOISES, [alone] * len(NOISES)), strict=True))
    rivals = ask_rivals({f"null_{noise}": unchanged(noise, alone) for noise in NOISES}, AT)
    rows = []
    for noise in NOISES:
        goal = PER_CLEAN if noise in CLEAN else PER_DIRTY
        rows.append(_row(f"two stages, {noise}", both[noise][0], goal))
        rows.append(_row(f"history alone, {noise}", lasting[noise], goal))
    for name, kinds, goal in (("clean", CLEAN, PER_CLEAN), ("dirty", DIRTY, PER_DIRTY)):
        ours = float(np.mean([both[noise][0] for noise in kinds]))
        for rival in rivals.names:
            nights = NIGHTS - FIRST if rival in RULES else NIGHTS  # those that it judged
            theirs = 1000 / nights * np.mean([rivals.of(rival, f"null_{noise}").mean() for noise in kinds])
            rows.append(_row(f"mean of {name} noise", ours, goal, rival, float(theirs)))
    spent = {noise: runs for noise, (_, runs) in both.items()}
    middle = float(np.median(list(spent.values())))
    rows.append(Row(name="extra runs a night, median of noise models", ours=middle, goal=2.0))
    return rows + [Row(name=f"extra runs a night, {noise}", ours=runs) for noise, runs in spent.items()]


def _row(name: str, ours: float, goal: float, rival: str = "", theirs: float | None = None) -> Row:
    return Row(name=name, ours=ours, goal=goal, unit="/1000 nights", rival=rival, rival_value=theirs)


def unchanged(noise: str, series: int) -> Array:
    return draw_nights(noise, series, NIGHTS, np.random.default_rng([SEED, NOISES.index(noise), 0]))


def judge_null(noise: str, series: int) -> tuple[float, float]:
    """Alarms of both stages in 1,000 nights, and runs a night."""
    rng = np.random.default_rng([SEED, NOISES.index(noise), 1, 1])
    played = play(noise, unchanged(noise, series), np.zeros(NIGHTS), rng)
    return 1000 * float((played.alarms != 0).sum()) / played.nights, played.runs / played.nights


def judge_alone(noise: str, series: int) -> float:
    return 1000 * sum(len(find_changes(one)) for one in unchanged(noise, series)) / (series * NIGHTS)
