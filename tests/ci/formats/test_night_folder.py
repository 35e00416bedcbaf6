"""What a night folder holds, and how it is read back."""

from pathlib import Path

from nightjar_ci.formats.night_folder import Night, is_night_id, job_folder, new_night_id, now, read_night, write_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import make_outcome
from tests.ci.jobs import RESULT, make_job


def make_night(*ids: str) -> Night:
    night = Night(id=new_night_id(), matrix="m", started_at=now(), finished_at=None, git=None, jobs=())
    for one in ids:
        outcome = make_outcome(make_job("true", id=one), state="completed", started_at=now(), exit_code=0)
        night = night.with_outcome(outcome)
    return night


def test_a_night_is_read_as_it_was_written(tmp_path: Path) -> None:
    night = make_night("a", "b")
    write_night(tmp_path, night)
    assert read_night(tmp_path) == night
    assert '"schema": "nightjar.night/1"' in (tmp_path / "night.json").read_text().replace('":"', '": "')


def test_an_outcome_replaces_the_earlier_one_of_its_job() -> None:
    night = make_night("a", "b", "a")
    assert [outcome.job for outcome in night.jobs] == ["b", "a"]
    assert night.outcome_of("c") is None


def test_results_come_with_their_outcomes_and_a_broken_one_is_none(tmp_path: Path) -> None:
    write_night(tmp_path, make_night("good", "broken", "absent"))
    for name, text in (("good", RESULT), ("broken", RESULT[:100])):
        job_folder(tmp_path, name).mkdir(parents=True)
        (job_folder(tmp_path, name) / "result.json").write_text(text)
    found = {outcome.job: record for outcome, record in read_night_results(tmp_path)}
    assert found["good"] is not None
    assert found["good"].workload == "gpt"
    assert found["broken"] is found["absent"] is None


def test_night_ids_are_recognised_and_differ() -> None:
    ids = {new_night_id() for _ in range(20)}
    assert len(ids) > 15
    assert all(is_night_id(one) for one in ids)
    assert not is_night_id("my-night")
