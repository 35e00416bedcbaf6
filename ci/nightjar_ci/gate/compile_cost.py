"""The compile cost of each cell of a night, compared with its usual value.

In: results, committed baselines, histories. Out: a verdict for each cell that has a policy for it and numbers from the
same processor to compare with. The committed baseline comes first; without one, the median of the latest nights counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from nightjar_ci.baselines.baseline import read_facts
from nightjar_ci.baselines.compile_cost import MEASURES, read_compile_cost
from nightjar_ci.formats.policy import FactsPolicy, Policies
from nightjar_ci.formats.run_record import Environment, RunRecord
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.judges.facts.compile_cost import CompileCost, judge_compile_cost

NIGHTS = 5  # whose median is the usual value


def judge_night_compilers(
    cells: Mapping[str, Sequence[RunRecord]], policies: Policies, baselines: Path, series: Sequence[Series]
) -> list[Verdict]:
    """Judges the compile cost in a night.

    Args:
        policies: `growth` of the facts policies selects the cells and gives the limits.
    """
    histories = {history.name: history for history in series}
    night: list[CompileCost] = []
    chosen: dict[str, FactsPolicy] = {}
    for cell, runs in cells.items():
        policy = _find_policy(cell, runs[0], policies)
        if policy is None or not (now := read_compile_cost(runs)):
            continue
        environment = runs[0].environment
        source, before = "the committed baseline", _committed(cell, baselines, environment)
        if not before:
            source = f"its latest nights (median of at most {NIGHTS})"
            earlier = {measure: _recent(histories.get(f"{cell}/{measure}"), environment) for measure in MEASURES}
            before = {measure: value for measure, value in earlier.items() if value is not None}
        if before:
            chosen[cell] = policy
            jobs = tuple(run.job for run in runs)
            night.append(CompileCost(cell=cell, runs=jobs, now=now, before=before, source=source))
    return judge_compile_cost(night, chosen)


def _find_policy(cell: str, run: RunRecord, policies: Policies) -> FactsPolicy | None:
    matching = (policies.for_facts(cell, facts.program) for facts in run.facts)
    return next((policy for policy in matching if policy is not None and policy.growth), None)


def _committed(cell: str, baselines: Path, environment: Environment) -> dict[str, float]:
    committed = read_facts(baselines, cell, environment.facts_key)
    if committed is None or committed.environment.measured_on != environment.measured_on:
        return {}
    return dict(committed.compiler)


def _recent(series: Series | None, environment: Environment) -> float | None:
    """The usual value on this machine, from the nights before tonight's, the last one."""
    if series is None:
        return None
    earlier = zip(series.values[:-1], series.environments[:-1], strict=True)
    here = environment.measured_on
    values = [float(value) for value, machine in earlier if machine == here and not math.isnan(value)]
    if not values:
        return None
    return median(values[-NIGHTS:])
