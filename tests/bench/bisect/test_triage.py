"""The re-implementation of the rival: right without noise, and with the faults that its source has."""

from __future__ import annotations

import math

import pytest

from tests.bench.bisect.packages import PackageWorld
from tests.bench.bisect.triage import ExitCodes, Gaussians, GaveUpError, Triage
from tests.bench.bisect.worlds import Cell


@pytest.mark.parametrize("culprit", [1, 2, 31, 62, 63])
@pytest.mark.parametrize("broken", [set(), {30, 31, 32, 33, 40}])
def test_triage_names_the_culprit_without_noise(culprit: int, broken: set[int]) -> None:
    def run(versions: dict[str, int]) -> float | None:
        rung = versions["jax"]
        return None if rung in broken - {culprit, culprit - 1} else float(rung >= culprit)

    found = Triage(run, ExitCodes()).search({"jax": [(rung, float(rung)) for rung in range(64)]})
    assert found == ("jax", culprit - 1, culprit)


@pytest.mark.parametrize("seed", range(20))
def test_triage_names_a_version_that_the_failure_needs(seed: int) -> None:
    world = PackageWorld(Cell(name="", n=64, kind="packages", error=0.0), seed)
    name, _, bad = Triage(world.run_versions, ExitCodes()).search(world.versions())
    assert world.accepts_version(name, bad)


def test_triage_calls_a_metric_that_is_not_a_number_ambiguous_and_repeats_it() -> None:
    runs: list[int] = []

    def run(versions: dict[str, int]) -> float:
        runs.append(versions["jax"])
        return math.nan if versions["jax"] == 4 else float(versions["jax"] >= 3) + 0.001 * len(runs)

    with pytest.raises(GaveUpError, match="no unambiguous result"):
        Triage(run, Gaussians([0.0, 0.01], [1.0, 1.01])).search({"jax": [(rung, float(rung)) for rung in range(8)]})
    assert runs.count(4) == 4


def test_triage_ends_with_an_error_when_a_test_is_flaky() -> None:
    results = iter([0.0, 0.0, 1.0, 0.0])
    with pytest.raises(GaveUpError, match="could not be reproduced"):
        Triage(lambda versions: next(results), ExitCodes()).search({"jax": [(rung, float(rung)) for rung in range(8)]})
