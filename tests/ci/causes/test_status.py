"""Which nights the status page blames, and what of a night it shows as absent."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.causes.status import find_open, read_status
from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.verdict import Status, Verdict
from tests.ci.nights import CELL, failed, record
from tests.ci.site.test_site import leave_night, make_page, make_site, make_verdict, only_row, stored


def since_the_second(status: Status = "regressed", **policy: str) -> Verdict:
    """A regression that its history found nights after it began."""
    origin = {"since": "2026-11-02T0300-0000", "good_night": "2026-11-01T0300-0000"}
    return make_verdict(status, policy=origin | policy)


def test_what_changed_is_told_of_the_nights_that_the_verdict_blames_and_not_of_the_night_that_found_it() -> None:
    nights = [
        stored(1, make_verdict("ok")),
        *(stored(day, make_verdict("ok"), jax="0.10.2") for day in (2, 3, 4)),
        stored(5, since_the_second(), jax="0.10.2"),
    ]
    (one,) = find_open(only_row(nights))
    assert (one.since.id[8:10], one.good and one.good.id[8:10], one.nights) == ("02", "01", 4)
    assert one.changes == ("jax 0.10.1 -> 0.10.2", "jaxlib 0.10.1 -> 0.10.2")
    page = make_page(nights)
    assert "what changed between night 2026-11-01T0300-0000 and night 2026-11-02T0300-0000" in page
    assert "No package" not in page


def test_what_changed_is_told_of_the_environment_of_the_verdicts_own_job() -> None:
    nights = [stored(1, make_verdict("ok")), stored(2, make_verdict("regressed"), jax="0.10.2")]
    recorded = {(CELL, night.id): record(jaxlib=night.id[:10]).environment for night in nights}
    (one,) = find_open(only_row(nights), lambda *cell_and_night: recorded[cell_and_night])
    assert one.changes == ("jax 2026-11-01 -> 2026-11-02", "jaxlib 2026-11-01 -> 2026-11-02")


def test_the_machine_is_blamed_for_the_nights_between_which_nothing_changed() -> None:
    nights = [*(stored(day, make_verdict("ok")) for day in (1, 2)), stored(3, since_the_second(), jax="0.10.2")]
    (one,) = find_open(only_row(nights))
    assert one.changes == ()
    ends = "Between night 2026-11-01T0300-0000 and night 2026-11-02T0300-0000: "
    assert f"{ends}No package and no commit: look at changes that are not committed, then" in make_page(nights)
    outside = [replace(night, git_sha=None) for night in nights]
    assert f"{ends}No package; the folder is not in git" in make_page(outside)


def test_a_test_that_fails_for_the_first_time_began_between_its_good_night_and_the_latest() -> None:
    judged = make_verdict("regressed", policy={"since": None, "good_night": "2026-11-01T0300-0000"})
    nights = [stored(1), stored(2, judged, jax="0.10.2")]
    (one,) = find_open(only_row(nights))
    assert (one.since.id[8:10], one.good and one.good.id[8:10], one.nights) == ("02", "01", 1)
    assert one.changes == ("jax 0.10.1 -> 0.10.2", "jaxlib 0.10.1 -> 0.10.2")


@pytest.mark.parametrize(("node", "good"), [(None, "01"), ("t/test_a.py::test_b", None)])
def test_a_file_that_fails_at_import_was_good_with_its_suite(node: str | None, good: str | None) -> None:
    suite = make_verdict("ok").model_copy(update={"series": f"{CELL}/tests_passed", "judge": "tests"})
    red = make_verdict("regressed", policy={"node": node})
    red = red.model_copy(update={"series": f"{CELL}/t.test_a", "judge": "tests"})
    (one,) = find_open(only_row([stored(1, suite), stored(2, red, suite, jax="0.10.2")]))
    assert (one.good and one.good.id[8:10]) == good


def test_where_the_good_night_is_not_shown_nothing_is_blamed() -> None:
    nights = [stored(day, since_the_second()) for day in (3, 4)]
    (one,) = find_open(only_row(nights))
    assert (one.good, one.nights) == (None, 2)
    page = make_page(nights)
    assert "The last good night is not on this page" in page
    assert "No package" not in page


@pytest.mark.parametrize(
    ("changes", "days", "current"),
    [
        ({"devices": None, "ran": 0, "environment": None}, 1, False),  # killed before its first job ended
        ({"devices": None}, 0, True),  # a later night has not ended the outage
        ({"devices": None}, 1, False),
        ({"devices": None, "environment": "uv:jax==99"}, 8, True),  # a one-off
        ({"devices": "8 x NVIDIA H100"}, 9, False),
        ({"devices": "8 x NVIDIA H100", "matrix": "weekly"}, 9, True),
    ],
)
def test_a_red_night_counts_until_a_later_one_stands_for_it(
    changes: Mapping[str, Any], days: int, current: bool
) -> None:
    red = stored(2, make_verdict("regressed"), failed=(failed(f"{CELL}-s0"),), **changes)
    nights = [stored(1), red, *(stored(2 + day) for day in range(1, days + 1))]
    status, page = read_status(nights), make_page(nights)
    assert (status.answer == "failed", len(status.open), len(status.failed)) == (current, current, current)
    assert ("no longer counted" in page, "badges/all.svg" in page) == (not current, current)


def test_a_finished_night_whose_jobs_have_not_run_is_not_ok_and_names_them(tmp_path: Path) -> None:
    here = leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    night = read_night(here)
    write_night(here, night.model_copy(update={"planned": (*(one.job for one in night.jobs), f"{CELL}-s1")}))
    status = make_site(tmp_path)
    assert (status["answer"], status["not_run"][0]["jobs"]) == ("cannot_tell", [f"{CELL}-s1"])
    page = (tmp_path / "site" / "index.html").read_text()
    assert "one job has not run" in page
    assert f"{CELL}-s1" in page


def test_a_series_that_is_due_and_absent_is_on_the_page(tmp_path: Path) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("cannot_tell", judge="presence", explanation="It is missing."))
    assert make_site(tmp_path)["answer"] == "cannot_tell"
    assert "It is missing." in (tmp_path / "site" / "index.html").read_text()


def test_a_night_whose_folder_is_gone_stays_on_the_page_without_its_report(tmp_path: Path) -> None:
    first, _ = [leave_night(tmp_path / "nights", day, make_verdict("ok")) for day in (1, 2)]
    make_site(tmp_path)
    shutil.rmtree(first)
    (row,) = make_site(tmp_path)["rows"]
    assert [night["report"] is not None for night in row["nights"]] == [False, True]
