"""The committed baselines on processors that did not make them: real nights, every curve green."""

from collections import defaultdict

import pytest

from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.run_record import RunRecord, read_run
from nightjar_ci.judges.convergence.convergence import judge_convergence
from tests.places import ROOT, SHARED_DATA

NIGHT = SHARED_DATA / "night-intel-xeon" / "jobs"
BASELINES = ROOT / "ci" / "baselines"


@pytest.mark.skipif(not NIGHT.is_dir(), reason=f"{NIGHT} is not there: NIGHTJAR_TEST_DATA names its folder")
def test_a_whole_night_of_another_processor_is_green_in_every_curve() -> None:
    policies = read_policies(ROOT / "ci" / "policies.toml")
    cells: dict[str, list[RunRecord]] = defaultdict(list)
    for path in sorted(NIGHT.glob("*/result.json")):
        run = read_run(path)
        cells[run.job.rpartition("-s")[0]].append(run)
    judged = []
    for cell, runs in cells.items():
        baseline = read_convergence(BASELINES, cell)
        for curve in runs[0].curves:
            policy = policies.for_curve(cell, curve.name)
            if baseline is None or policy is None or policy.same_as is not None:
                continue
            verdict = judge_convergence(cell, curve.name, runs, baseline, policy)
            assert verdict.status == "ok", f"{verdict.series}: {verdict.explanation}"
            judged.append(verdict.series)
    assert "gpt_tiny-train-cpu-bf16-dp1/loss" in judged
    assert len(judged) >= 20
