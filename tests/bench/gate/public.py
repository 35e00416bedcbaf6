"""How do the detectors do on real histories? Three projects' own series of benchmarks, each project as often.

In: the series of `public_data.py`. Out: alarms on the series as they are, and how many of the steps planted into them
are found. The series have changes of their own, so that an alarm need not be a false one; and re-runs are drawn from
their own noise.
"""

from __future__ import annotations

import numpy as np

from nightjar_ci.judges.history.change_points import find_changes
from nightjar_ci.judges.history.screening import screen_segments
from nightjar_ci.judges.history.segment import current_segment
from nightjar_ci.judges.performance.sequential import decide
from tests.bench.gate.noise import Array, Rng
from tests.bench.gate.public_data import read_all
from tests.bench.gate.rivals import Rivals, ask_rivals
from tests.bench.gate.two_stages import FIRST, POLICY
from tests.bench.table import NotMeasuredError, Row
from tests.ci.judges.judged import make_series

GOAL = 3  # projects
NIGHTS, AT, WITHIN = 90, 60, 10
READ = "projects whose history could be read"
RIVALS = (
    *("Otava", "Otava, p 1e-6, 1 %", "asv, 5 %", "PELT", "Perfherder", "JAX-Toolbox as intended", "pytest-benchmark"),
    *("PyTorch, 4-day medians", "Megatron-Bridge", "XLA presubmit, 30 %"),
)


def list_goals(quick: bool = False) -> list[str]:
    """The names of this part's goals."""
    return [READ]


def measure(quick: bool = False) -> list[Row]:
    """Rows of planted steps, and of alarms on the series as they are."""
    projects = read_all()
    histories = [series for _, series in projects]
    if not histories:
        raise NotMeasuredError("no project's history could be read: no network")
    rows = [Row(name=READ, ours=len(projects), goal=GOAL, better="higher")]
    rng = np.random.default_rng(7)
    stretches = cut(histories, 20 if quick else 200, rng)
    rows.append(Row(name="nights in them", ours=sum(len(one) for series in histories for one in series)))
    steps = {size: plant(stretches, size) for size in (0.0, 0.05, 0.10)}
    entries = {f"step_public_{size}": values for size, values in steps.items() if size}
    rivals = ask_rivals({"null_public": steps[0.0], **entries}, AT)
    for size, values in steps.items():
        found = [play(one, size, rng) for one in values]
        rows += [row(rivals, rival, size, found, len(values)) for rival in RIVALS]
    changes = sum(len(find_changes(one)) for one in steps[0.0])
    rows.append(Row(name="change points in 1,000 real nights, history alone", ours=1000 * changes / steps[0.0].size))
    return rows


def row(rivals: Rivals, rival: str, size: float, found: list[int], series: int) -> Row:
    """One rival against the two stages: alarms in 1,000 nights where nothing was planted, else steps found."""
    if size:
        theirs = 100 * float((rivals.of(rival, f"step_public_{size}") > 0).mean())
        name = f"{size:.0%} step in 10 nights, planted in real series"
        ours = 100 * sum(night > 0 for night in found) / series
        return Row(name=name, ours=ours, better="higher", unit="%", rival=rival, rival_value=theirs)
    theirs = 1000 * float(rivals.of(rival, "null_public").mean()) / (NIGHTS - FIRST)
    ours = 1000 * sum(found) / (series * (NIGHTS - FIRST))
    return Row(name="alarms in 1,000 real nights", ours=ours, unit="", rival=rival, rival_value=theirs)


def cut(projects: list[list[Array]], count: int, rng: Rng) -> Array:
    """Stretches of `NIGHTS` nights, shape (count, NIGHTS); forwards and backwards, up and down."""
    stretches = []
    for _ in range(count):
        histories = projects[rng.integers(len(projects))]
        whole = histories[rng.integers(len(histories))]
        start = int(rng.integers(len(whole) - NIGHTS + 1))
        stretches.append(whole[start : start + NIGHTS][:: rng.choice([-1, 1])] * rng.choice([-1, 1]))
    return np.array(stretches)


def plant(stretches: Array, size: float) -> Array:
    """A step at night `AT`."""
    return np.asarray(stretches + np.log1p(size) * (np.arange(NIGHTS) >= AT), dtype=np.float64)


def play(values: Array, size: float, rng: Rng) -> int:
    """The two stages on one stretch: nights until the planted step is found (0: never), or alarms where none was.

    Re-runs vary like the real nights around: two of the 30 nights before, with their level taken out.
    """
    alarms = 0
    for night in range(AT, AT + WITHIN) if size else range(FIRST, NIGHTS):
        seen = current_segment(make_series(np.exp(values[: night + 1])), POLICY)
        (screening,) = screen_segments([seen])
        if screening is None or not screening.stands_out:
            continue
        around = values[max(0, night - 30) : night]
        ours, theirs = rng.choice(np.diff(around) / 2**0.5, (2, POLICY.looks[-1]))
        change = np.log1p(size) if night >= AT > int(screening.good_night) else 0.0
        decision = decide(list(change + ours - theirs), POLICY)
        if decision is not None and decision.status == "regressed":
            if size:
                return night - AT + 1
            alarms += 1
    return alarms
