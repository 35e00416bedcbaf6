"""Faults of one curve: the first that applies is named, with its seed and step."""

import math

import pytest

from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.judges.convergence.curve_faults import expected_steps, find_faults
from tests.ci.nights import record

STEPS = (0, 2, 4, 6)


def make_run(steps: tuple[int, ...], values: tuple[float, ...], status: str = "completed") -> RunRecord:
    curve = record().curves[0].model_copy(update={"name": "loss", "steps": steps, "values": values})
    return record().model_copy(update={"seed": 7, "status": status, "curves": (curve,)})


@pytest.mark.parametrize(
    ("run", "status", "explanation"),
    [
        (make_run(STEPS, (1.0, math.nan, math.inf, 1.0)), "regressed", "The loss of seed 7 is NaN from step 2 on."),
        (
            make_run(STEPS, (1.0, 1.0, -math.inf, math.nan)),
            "regressed",
            "The loss of seed 7 is infinite from step 4 on.",
        ),
        (make_run(STEPS, (1.0,) * 4, "diverged"), "regressed", "The training of seed 7 diverged after step 6."),
        (make_run((), (), "diverged"), "regressed", "The training of seed 7 diverged before its first step."),
        (make_run(STEPS[:3], (1.0,) * 3), "regressed", "The loss of seed 7 ends at step 4, expected 6."),
        (make_run((), ()), "regressed", "The loss of seed 7 ends at step None, expected 6."),
        (make_run((0, 6), (1.0,) * 2), "regressed", "The loss of seed 7 lacks 2 of 4 steps, the first is 2."),
        (
            make_run((0, 1, 2, 4, 5, 6), (1.0,) * 6),
            "cannot_tell",
            "The loss of seed 7 has steps that the baseline lacks, the first is 1: not the same training.",
        ),
    ],
)
def test_a_fault_is_named(run: RunRecord, status: str, explanation: str) -> None:
    (finding,) = find_faults(run, "loss", STEPS)
    assert (finding.status, finding.explanation) == (status, explanation)


def test_a_whole_curve_has_no_fault() -> None:
    assert list(find_faults(make_run(STEPS, (1.0,) * 4), "loss", STEPS)) == []


def test_without_a_baseline_the_steps_of_all_runs_are_expected() -> None:
    runs = [make_run((4, 0), (1.0,) * 2), make_run((2, 0), (1.0,) * 2)]
    assert expected_steps(runs, "loss") == (0, 2, 4)
    assert expected_steps(runs, "accuracy") == ()
