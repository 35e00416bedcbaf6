"""Histories of a row: the numbers on the page, in a browser the charts, the filter, two nights compared, and links."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_ci.formats.series import Series
from nightjar_ci.site.histories import make_data, render_histories
from tests.browser import Page, open_browser
from tests.ci.nights import CELL
from tests.ci.site.test_site import EVIL, leave_night, make_site, make_verdict, only_row, stored

NIGHTS, CHANGED = 80, 40
STEP, LOSS = f"{CELL}/step_time", f"{CELL}/loss"


def names(count: int = NIGHTS) -> tuple[str, ...]:
    return tuple(f"2026-{10 + day // 30}-{day % 30 + 1:02d}T0300-0000" for day in range(count))


def series(name: str, values: Any, **changes: Any) -> Series:
    row = {"unit": "s", "better": "lower", "nights": names(len(values)), "environments": ("cpu",) * len(values)}
    return Series(name=name, values=np.asarray(values, dtype=float), **{**row, **changes})


def make_row(count: int = NIGHTS) -> Any:
    nights = [
        stored(1, make_verdict("regressed" if number == count - 1 else "ok"), id=name, jax=f"0.10.{number // CHANGED}")
        for number, name in enumerate(names(count))
    ]
    return only_row(nights)


def page_data(text: str) -> Any:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def slow() -> np.ndarray[Any, Any]:
    return np.repeat([0.050, 0.060], [CHANGED, NIGHTS - CHANGED]) + np.random.default_rng(1).normal(0, 1e-4, NIGHTS)


def test_the_numbers_of_each_night_are_on_the_page_in_a_readable_unit() -> None:
    row = make_row()
    data = make_data(row, [series(STEP, slow())], {names()[3]: "nights/x/report.html"})
    (one,) = data["series"]
    assert (one["unit"], one["status"], one["at"]) == ("ms", "regressed", list(range(NIGHTS)))
    assert one["values"] == pytest.approx(1e3 * slow(), rel=1e-5)
    (first, second) = one["levels"]
    assert (first[0], second[1]) == (0, NIGHTS - 1)
    assert (first[1], second[0]) == pytest.approx((CHANGED - 1, CHANGED), abs=1)
    assert [first[2], second[2]] == pytest.approx([50, 60], rel=0.01)
    assert data["nights"][3]["report"] == "../nights/x/report.html"


def test_nights_are_in_the_order_of_their_starts_whatever_their_ids_are() -> None:
    ids = ("github-9-1", "laptop", "github-10-1")  # the second is in the history alone
    row = only_row([stored(day, make_verdict("ok"), id=name) for day, name in ((1, ids[0]), (2, ids[2]))])
    data = make_data(row, [series(LOSS, [1.0, 2.0, 3.0], nights=ids)], {})
    assert [(night["id"], night.get("started", "")[:10]) for night in data["nights"]] == [
        ("github-9-1", "2026-11-01"),
        ("laptop", ""),
        ("github-10-1", "2026-11-02"),
    ]
    assert data["series"][0]["at"] == [0, 1, 2]


@pytest.mark.browser
def test_a_chart_names_days_and_the_hours_of_a_single_day(tmp_path: Path) -> None:
    ids = ("github-9-1", "github-10-1")
    labels = "[...document.querySelectorAll('svg.chart text')].slice(-2).map((text) => text.textContent)"
    with open_browser(tmp_path / "profile", Page) as page:
        for second, expected in (("02T03:00", ["2026-11-01", "2026-11-02"]), ("01T09:30", ["03:00", "09:30"])):
            later = stored(1, make_verdict("ok"), id=ids[1], started_at=f"2026-11-{second}:00.000+00:00")
            row = only_row([stored(1, make_verdict("ok"), id=ids[0]), later])
            path = tmp_path / f"{second[:2]}.html"
            path.write_text(render_histories(row, [series(LOSS, [1.0, 2.0], nights=ids)], {}))
            page.navigate(path.as_uri())
            page.wait("document.readyState === 'complete' && document.querySelectorAll('tr.series').length === 1")
            page.click("document.querySelector('tr.series')")
            page.wait("document.querySelectorAll('svg.chart circle').length === 2")
            assert page.value(labels) == expected
            assert "2026-11-01 github-9-1" in page.value("document.getElementById('before').textContent")


def test_packages_of_a_night_are_what_differs_from_the_night_before() -> None:
    nights = make_data(make_row(), [series(STEP, slow())], {})["nights"]
    changed = {number: night["packages"] for number, night in enumerate(nights) if night["packages"]}
    assert changed == {0: {"jax": "0.10.0", "jaxlib": "0.10.0"}, CHANGED: {"jax": "0.10.1", "jaxlib": "0.10.1"}}


def test_a_package_that_is_gone_is_said() -> None:
    nights = [
        stored(1, make_verdict("ok"), packages={"jax": "1", "flax": "2"}),
        stored(2, make_verdict("ok"), packages={"jax": "1"}),
    ]
    assert make_data(only_row(nights), [], {})["nights"][1]["packages"] == {"flax": None}


def test_a_night_without_a_value_is_a_gap_and_a_series_may_have_none_at_all() -> None:
    row = make_row(3)
    data = make_data(row, [series(STEP, [1.0, np.nan, 2.0]), series(LOSS, [np.inf, np.nan, np.nan])], {})
    loss, step = data["series"]
    assert (step["values"], loss["values"], loss["levels"]) == ([1.0, None, 2.0], [None] * 3, [])


def test_machines_are_told_apart_where_there_are_several() -> None:
    one = series(STEP, [1.0, 2.0, 1.0], environments=("a", "b", "a"))
    (entry,) = make_data(make_row(3), [one], {})["series"]
    assert (entry["machines"], entry["machine"]) == (["a", "b"], [0, 1, 0])


def test_names_from_jobs_are_text() -> None:
    text = render_histories(make_row(3), [series(f"{CELL}/{EVIL}\u202e", [1.0, 2.0, 3.0])], {})
    assert text.count("</script>") == 2
    (entry,) = page_data(text)["series"]
    assert "\u202e" not in entry["name"]
    assert "\x07" not in entry["name"]


@pytest.mark.browser
def test_charts_filter_and_comparison_work_from_a_file_and_are_in_the_address(tmp_path: Path) -> None:
    flat = np.full(NIGHTS, 2.5)
    histories = [series(STEP, slow()), series(LOSS, flat, unit="nats"), series(f"{CELL}/{EVIL}", flat)]
    page_file = tmp_path / "series" / "row.html"
    page_file.parent.mkdir()
    page_file.write_text(render_histories(make_row(), histories, {}), encoding="utf-8")
    with open_browser(tmp_path / "profile", Page) as page:
        page.navigate(page_file.as_uri())
        page.wait("document.readyState === 'complete' && document.querySelectorAll('tr.series').length === 3")
        page.click("[...document.querySelectorAll('tr.series')].find((row) => row.textContent.includes('step_time'))")
        page.wait("document.querySelectorAll('svg.chart circle').length === 80")
        assert page.value("document.querySelectorAll('svg.chart .level').length") == 2
        assert page.value("document.querySelectorAll('svg.chart .moved').length") == 1
        assert "step_time" in page.value("decodeURIComponent(location.hash)")
        choose = "{{const box = document.getElementById('{}'); box.value = {}; box.dispatchEvent(new Event('change'))}}"
        page.value(f"(() => {choose.format('before', CHANGED - 1)})()")
        page.value(f"(() => {choose.format('after', CHANGED)})()")
        told = page.value("document.getElementById('comparison').textContent")
        assert "jax 0.10.0 -> 0.10.1" in told
        assert re.search(r"step_time\S* ?[\d.]+ ms\s*[\d.]+ ms\s*\+\d+\.\d %", told)
        address = page.value("location.href")
        for width, dark in ((1400, False), (390, True)):
            page.size(width, 900, dark=dark)
            assert page.value("document.documentElement.scrollWidth") <= width
        page.navigate("about:blank")
        page.navigate(address)
        page.wait("document.querySelectorAll('svg.chart circle').length === 80")
        assert "jax 0.10.0 -> 0.10.1" in page.value("document.getElementById('comparison').textContent")
        page.value(
            "(() => {const box = document.getElementById('filter'); box.value = 'regressed'; "
            "box.dispatchEvent(new Event('input'))})()"
        )
        assert page.value("document.querySelectorAll('tr.series').length") == 1
        assert page.value("document.title") == "nightly-cpu: histories"
        assert not [url for url in page.requests() if not url.startswith(("file:", "data:", "about:"))]
        assert page.problems() == []


def test_the_status_page_links_to_the_page_of_each_row(tmp_path: Path) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    leave_night(tmp_path / "nights", 2, make_verdict("ok"))
    make_site(tmp_path)
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    (link,) = re.findall(r'href="(series/[^"]+)"', index)
    data = page_data((tmp_path / "site" / link).read_text(encoding="utf-8"))
    assert {one["name"]: len(one["values"]) for one in data["series"]}[STEP] == 2
    assert [night["report"].startswith("../nights/") for night in data["nights"]] == [True, True]


def test_a_series_that_has_vanished_keeps_its_history_on_the_page(tmp_path: Path) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    leave_night(tmp_path / "nights", 2, make_verdict("ok"))
    here = leave_night(tmp_path / "nights", 3, make_verdict("cannot_tell", judge="presence"))
    (result,) = here.glob("jobs/*/result.json")
    text = json.loads(result.read_text())
    text["samples"] = [sample for sample in text["samples"] if sample["name"] != "step_time"]
    result.write_text(json.dumps(text))
    make_site(tmp_path)
    (path,) = (tmp_path / "site" / "series").glob("*.html")
    data = page_data(path.read_text(encoding="utf-8"))
    (vanished,) = [one for one in data["series"] if one["name"] == STEP]
    assert (vanished["at"], vanished["status"], len(data["nights"])) == ([0, 1], "cannot_tell", 3)
