"""What a night left is read once: each result and each profile, a single time for gate, exit code and report."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.formats import documents, profile, run_record
from nightjar_ci.formats.night_folder import Night, is_night_id, new_night_id, now, read_night, write_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.policy import Policies
from nightjar_ci.gate.gate import find_exit_code, gate_night
from nightjar_ci.report.contents import gather
from nightjar_ci.report.write import write_reports
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from tests.ci.jobs import make_job
from tests.ci.nights import CELL, failed, leave_capture, make_night, outcome, record

POLICIES = Policies.model_validate({"schema": "nightjar.policies/1"})


def test_gate_exit_code_and_report_parse_each_result_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(seed) for seed in range(3)]
    profiled = outcome("gpt-profile", kind="profile")
    folder = make_night(tmp_path / "n", [*((outcome(one.job), one) for one in records), (profiled, None)])
    leave_capture(folder, profiled.job)
    parsed: Counter[Path] = Counter()
    read = documents.read_document

    def count(path: Path, *arguments: Any, **options: Any) -> Any:
        parsed[path] += 1
        return read(path, *arguments, **options)

    for module in (run_record, profile):
        monkeypatch.setattr(module, "read_document", count)
    results = read_night_results(folder)
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}))
    verdicts = gate_night(results, POLICIES, tmp_path / "none", store)
    write_reports(folder, gather(results, verdicts, POLICIES, tmp_path / "none", store))
    store.close()
    find_exit_code(results, verdicts)
    assert len(parsed) == 4
    assert set(parsed.values()) == {1}


def test_a_result_that_is_gone_makes_its_outcome_invalid_and_the_others_stay(tmp_path: Path) -> None:
    records = [record(seed) for seed in range(2)]
    folder = make_night(tmp_path, [*((outcome(one.job), one) for one in records), (failed(f"{CELL}-s9"), None)])
    (folder / "jobs" / records[0].job / "result.json").unlink()
    results = read_night_results(folder)
    states = {ended.job: (ended.state, left is not None) for ended, left in results}
    assert states[records[0].job] == ("invalid", False)
    assert states[records[1].job] == ("completed", True)
    assert states[f"{CELL}-s9"] == ("failed", False)
    assert [left.job for left in results.by_cell()[CELL]] == [records[1].job]


def night_of(*ids: str) -> Night:
    night = Night(id=new_night_id(), matrix="m", started_at=now(), finished_at=None, git=None, jobs=())
    for one in ids:
        outcome = make_outcome(make_job("true", id=one), state="completed", started_at=now(), exit_code=0)
        night = night.with_outcome(outcome)
    return night


def test_a_night_is_read_as_it_was_written(tmp_path: Path) -> None:
    night = night_of("a", "b")
    write_night(tmp_path, night)
    assert read_night(tmp_path) == night
    assert '"schema": "nightjar.night/1"' in (tmp_path / "night.json").read_text().replace('":"', '": "')


def test_an_outcome_replaces_the_earlier_one_of_its_job() -> None:
    night = night_of("a", "b", "a")
    assert [outcome.job for outcome in night.jobs] == ["b", "a"]
    assert night.outcome_of("c") is None


def test_night_ids_are_recognised_and_differ() -> None:
    ids = {new_night_id() for _ in range(20)}
    assert len(ids) > 15
    assert all(is_night_id(one) for one in ids)
    assert not is_night_id("my-night")
