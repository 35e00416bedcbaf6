"""How often does the history judge cry wolf on unchanged series, and what do its re-runs cost?"""

import numpy as np

from tests.bench.gate.experiment import experiment
from tests.bench.gate.noise import CLEAN, DIRTY, NOISES
from tests.bench.table import Row

PER_CLEAN, PER_DIRTY = 0.05, 0.2  # in 1,000 nights


def list_goals(quick: bool = False) -> list[str]:
    by_noise = [f"{stage}, {noise}" for noise in NOISES for stage in ("two stages", "history alone")]
    return [*by_noise, "mean of clean noise", "mean of dirty noise", "extra runs a night, median of noise models"]


def measure(quick: bool = False) -> list[Row]:
    done = experiment(quick)
    rows = []
    for noise in NOISES:
        goal = PER_CLEAN if noise in CLEAN else PER_DIRTY
        rows.append(_row(f"two stages, {noise}", done.alarms[noise], goal))
        rows.append(_row(f"history alone, {noise}", done.alone[noise], goal))
    for name, kinds, goal in (("clean", CLEAN, PER_CLEAN), ("dirty", DIRTY, PER_DIRTY)):
        ours = float(np.mean([done.alarms[noise] for noise in kinds]))
        for rival in done.rivals.names:
            theirs = float(np.mean([done.rival_alarms(rival, noise) for noise in kinds]))
            rows.append(_row(f"mean of {name} noise", ours, goal, rival, theirs))
    spent = list(done.runs.values())
    rows.append(Row(name="extra runs a night, median of noise models", ours=float(np.median(spent)), goal=2.0))
    rows += [Row(name=f"extra runs a night, {noise}", ours=done.runs[noise]) for noise in NOISES]
    return rows


def _row(name: str, ours: float, goal: float, rival: str = "", theirs: float | None = None) -> Row:
    return Row(name=name, ours=ours, goal=goal, unit="/1000 nights", rival=rival, rival_value=theirs)
