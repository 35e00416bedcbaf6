from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_ci.environments.prepare import parse_environment
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import read_result
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.formats.series import Series
from nightjar_ci.gate.gate import judge_night
from nightjar_ci.gate.history import Memory, screen_histories
from nightjar_ci.gate.reruns import (
    EnvironmentOf,
    RerunRequest,
    find_reference,
    find_reruns,
    plan_confirmations,
)
from nightjar_ci.night.paired_runs import Comparison, run_pairs
from tests.ci.jobs import make_job
from tests.ci.judges.judged import make_series
from tests.ci.nights import CELL, ENVIRONMENT, leave_result, make_night, outcome, record

POLICIES = Policies.model_validate(
    {
        "schema": "nightjar.policies/1",
        "history": [{"measure": "step_time"}],
        "performance": [{"ab_args": ["--steps", "60"]}],
        "convergence": [],
    }
)
GOOD = "night-0069"


def environment(jax: str = "0.10.2", **changes: object) -> Environment:
    return Environment.model_validate({**ENVIRONMENT, "packages": {"jax": jax, "numpy": "2.4.6"}, **changes})


def earlier(_: str, night: str) -> Environment:
    return environment("0.10.1" if night <= GOOD else "0.10.2")


def job(name: str = "current", cell: str = CELL) -> Job:
    return make_job("train", "--out", "{out}", id=f"{cell}-s0", cell=cell, environment=name)


def history(last: float = 1.05, cell: str = CELL, night: str | None = None) -> Series:
    values = 0.05 * np.exp(np.random.default_rng(0).normal(0, 0.003, 80))
    values[-1] = 0.05 * last
    nights = [f"night-{number:04d}" for number in range(79)]
    series = make_series(values, f"{cell}/step_time", machines=["cpu"] * 80)
    return replace(series, nights=(*nights, night or "night-0079"))


def suspect(*series: Series, jobs: Sequence[Job] = (), of: EnvironmentOf = earlier, **known: Any) -> list[RerunRequest]:
    memory = Memory(series=series or [history()], **known)
    return find_reruns(screen_histories(memory, POLICIES).values(), POLICIES, jobs or [job()], of)


def plan(*series: Series, jobs: Sequence[Job] = (), policies: Policies = POLICIES) -> list[Comparison]:
    return plan_confirmations(suspect(*series, jobs=jobs), policies, jobs or [job()])


def test_a_series_that_stands_out_is_run_again_beside_the_versions_of_a_good_night() -> None:
    (comparison,) = plan()
    assert comparison.reference == "uv:jax==0.10.1"
    assert comparison.numbers.looks == (4, 8, 16, 32)
    assert (comparison.subfolder, comparison.how.ab_args) == ("confirm", ("--steps", "60"))


def test_a_quiet_series_and_an_accepted_change_ask_for_nothing() -> None:
    assert suspect(history(1.0)) == []
    assert suspect(accepted={f"{CELL}/step_time": ["night-0079"]}) == []


def test_the_pairs_of_a_cell_are_against_the_earliest_good_night_of_its_measures() -> None:
    (request,) = suspect()
    dated = []
    for night in ("night-0070", "night-0060", "night-0075"):
        screening = replace(request.screened.screening, good_night=night)
        dated.append(replace(request, reference=night, screened=replace(request.screened, screening=screening)))
    (comparison,) = plan_confirmations(dated, POLICIES, [job()])
    assert comparison.reference == "night-0060"


def test_without_a_difference_between_the_environments_there_is_nothing_to_run() -> None:
    (request,) = suspect(of=lambda *_: environment())
    assert request.reference is None
    assert "no package that its results record has another version now, and no commit is recorded" in request.why_not
    assert plan_confirmations([request], POLICIES, [job()]) == []


def test_the_most_surprising_cells_come_first_and_no_more_than_the_policy_says() -> None:
    few = POLICIES.model_copy(update={"night": POLICIES.night.model_copy(update={"most_confirmations": 1})})
    cells = [job(cell="a"), job(cell="b")]
    planned = plan(history(1.02, "a"), history(1.3, "b"), jobs=cells, policies=few)
    assert [one.job.cell for one in planned] == ["b"]


@pytest.mark.parametrize(
    ("name", "then", "expected"),
    [
        ("current", environment("0.10.1"), "uv:jax==0.10.1"),
        ("uv:numpy==2.4.6,jax==0.10.2", environment("0.10.1"), "uv:numpy==2.4.6,jax==0.10.1"),
        ("project:.,jax", environment("0.10.1"), "project:.,jax,jax==0.10.1"),
        ("image:jax:tonight", environment(image="jax:monday"), "image:jax:monday"),
        ("image:jax:tonight", environment(), None),
        ("current", environment(), None),
        ("current", environment("0.10.1", python="3.10.9"), None),
        ("current", None, None),
    ],
)
def test_an_earlier_environment_is_named_as_the_matrix_would(
    name: str, then: Environment | None, expected: str | None
) -> None:
    reference, why_not = find_reference(name, then, environment(image=None))
    assert reference == expected
    assert bool(why_not) == (expected is None)


GIT = {"sha": "b" * 40, "dirty": False}


@pytest.mark.parametrize(
    ("name", "then", "has_commit", "expected"),
    [
        ("current", {}, True, f"commit:{'a' * 40}:current"),
        ("current", {"jax": "0.10.1"}, True, f"commit:{'a' * 40}:uv:jax==0.10.1"),
        ("current", {"jax": "0.10.1"}, False, "uv:jax==0.10.1"),
        ("image:jax:tonight", {"image": "jax:monday"}, True, f"commit:{'a' * 40}:image:jax:monday"),
        ("project:.[test]", {"jax": "0.10.1"}, True, f"commit:{'a' * 40}:project:.[test],jax==0.10.1"),
        ("uv:ci/lock.txt", {"jax": "0.10.1"}, True, f"commit:{'a' * 40}:uv:ci/lock.txt,jax==0.10.1"),
        ("current", {}, False, "git does not have its commit aaaaaaaaaaaa here"),
        ("current", {"git": {"sha": "a" * 40, "dirty": True}}, True, "with changes that no commit holds"),
        ("current", {"git": GIT}, True, "the commit is the same, so the machine changed"),
    ],
)
def test_another_commit_is_run_again_in_a_worktree_of_it(
    name: str, then: dict[str, Any], has_commit: bool, expected: str
) -> None:
    before = environment(**{"git": {"sha": "a" * 40, "dirty": False}, **then})
    reference, why_not = find_reference(name, before, environment(git=GIT), lambda sha: has_commit)
    assert reference == expected or (reference is None and expected in why_not)
    assert reference is None or parse_environment(reference)


def test_a_sample_without_a_policy_is_run_whole_and_a_curve_is_not_run_again() -> None:
    bare = POLICIES.model_copy(update={"performance": ()})
    screened = screen_histories(Memory(series=[history()]), bare).values()
    (request,) = find_reruns(screened, bare, [job()], earlier)
    (comparison,) = plan_confirmations([request], bare, [job()])
    assert (comparison.how.sample, comparison.how.ab_args) == ("step_time", ())
    (request,) = find_reruns(screened, bare, [job()], earlier, is_sample=lambda cell, measure: False)
    assert (request.reference, request.why_not) == (
        None,
        "pairs compare samples, and this is the last value of a curve",
    )


@pytest.mark.parametrize(("factor", "status"), [(1.05, "regressed"), (1.0, "ok")])
def test_the_gate_decides_by_the_pairs_that_a_history_asked_for(tmp_path: Path, factor: float, status: str) -> None:
    folder = make_night(tmp_path / "night", [(outcome(), record(0))])
    rng = np.random.default_rng(3)

    def run(one: Job, here: Path) -> Outcome:
        seconds = 0.05 * (factor if one.environment == "current" else 1.0) * float(np.exp(rng.normal(0, 0.002)))
        leave_result(here, record(step_times=(9.0, seconds, seconds)))
        ended = make_outcome(one, state="completed", started_at="2026-11-21T03:00:00+00:00")
        write_json(here / "outcome.json", ended)
        return ended

    (comparison,) = plan()
    run_pairs(comparison, folder, run=run, read=read_result)
    verdicts = judge_night(
        read_night_results(folder), POLICIES, tmp_path / "none", memory=Memory(series=[history()])
    ).verdicts
    (verdict,) = [one for one in verdicts if one.judge == "history"]
    assert verdict.status == status
    assert verdict.runs[0] == f"confirm/{CELL}/01-a"
    assert verdict.policy["reference"] == "uv:jax==0.10.1"
