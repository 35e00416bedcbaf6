"""The report of a night as data and as HTML; in a browser where there is one."""

import base64
import gzip
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nightjar_ci.baselines.accepted import Entry
from nightjar_ci.baselines.baseline import write_convergence
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.policy import ConvergencePolicy
from nightjar_ci.formats.run_record import RunRecord, Sample
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import NightVerdicts
from nightjar_ci.gate.gate import judge_night
from nightjar_ci.report.contents import Contents, gather
from nightjar_ci.report.figures import curve_figure, sample_figure
from nightjar_ci.report.history import find_levels, history_figure, spark_points
from nightjar_ci.report.html import render_html
from nightjar_ci.report.write import write_reports
from nightjar_ci.store import Store
from tests.browser import Page, open_browser
from tests.ci.judges.judged import make_series
from tests.ci.nights import CELL, baseline, failed, leave_capture, leave_pair, losses, make_night, outcome, record
from tests.ci.report.test_formats import POLICIES
from tests.ci.site.test_site import make_verdict

EVIL = "<script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>\u2028</script>{{ 7*7 }}"


class Memory(Store):
    def __init__(self, count: int) -> None:
        self.count = count

    def series_before(self, night_id: str, *, window: int = 0) -> list[Series]:
        return [make_series([0.05] * self.count, f"{CELL}/{name}") for name in ("loss", "step_time")]


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="text/plain" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    unpacked: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return unpacked


def contents(tmp_path: Path, runs: list[tuple[Outcome, RunRecord | None]], nights: int = 1) -> Contents:
    write_convergence(tmp_path / "baselines", baseline())
    folder = tmp_path / "night"
    if not (folder / "night.json").exists():
        make_night(folder, runs)
    verdicts = judge_night(read_night_results(folder), POLICIES, tmp_path / "baselines")
    return gather(read_night_results(folder), verdicts, POLICIES, tmp_path / "baselines", Memory(nights))


def good_runs() -> list[tuple[Outcome, RunRecord | None]]:
    return [(outcome(f"{CELL}-s{seed}"), record(seed)) for seed in range(3)]


def profile_night(tmp_path: Path, **changes: object) -> Contents:
    job = outcome("gpt-profile-cpu", kind="profile", cell="gpt-profile-cpu", replicate=None)
    make_night(tmp_path / "night", [(job, None)])
    leave_capture(tmp_path / "night", "gpt-profile-cpu", **changes)
    return contents(tmp_path, [])


class Text(HTMLParser):
    """The text and the tags of a page, without scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self._skip = "", list[tuple[str, dict[str, str | None]]](), False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skip = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip = self._skip and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skip else data


def test_a_profile_says_whose_code_the_time_is_where_it_knows(tmp_path: Path) -> None:
    assert "in library code alone" in Text(render_html(profile_night(tmp_path / "new"))).text
    page = Text(render_html(profile_night(tmp_path / "old", library_fraction=None)))
    assert "in your lines" in page.text
    assert "in library code alone" not in page.text


def test_the_page_names_the_answer_the_verdicts_and_the_environment(tmp_path: Path) -> None:
    page = Text(render_html(contents(tmp_path, good_runs())))
    assert "no regression found, but at least one judge cannot tell" in page.text  # facts have no baseline here
    assert f"{CELL}/loss" in page.text
    assert "3 seeds reproduce the baseline's curves" in page.text
    assert "AMD EPYC, 2 cores, 24 GiB" in page.text
    assert "The performance judge is off" in page.text


def test_verdicts_are_listed_worst_first(tmp_path: Path) -> None:
    page = Text(render_html(contents(tmp_path, good_runs())))
    assert page.text.index("There is no baseline for jaxlib") < page.text.index("3 seeds reproduce")


def test_a_failed_job_is_shown_with_its_message(tmp_path: Path) -> None:
    runs = [*good_runs(), (failed("vit-s0", "killed", message="ended by SIGKILL\nHint: out of memory?"), None)]
    page = Text(render_html(contents(tmp_path, runs)))
    assert "a job did not complete" in page.text
    assert "ended by SIGKILL\nHint: out of memory?" in page.text
    assert "3 of 4" in page.text


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    page = Text(render_html(contents(tmp_path, good_runs())))
    references = [attributes for tag, attributes in page.tags if {"src", "href"} & attributes.keys()]
    assert references == []
    assert sum(tag == "script" for tag, _ in page.tags) == 3


def test_what_a_job_wrote_never_becomes_markup(tmp_path: Path) -> None:
    bad = record(0, config={"note": EVIL, "data_digest": EVIL}, name=EVIL, job=EVIL)
    runs: list[tuple[Outcome, RunRecord | None]] = [
        (outcome(f"{CELL}-s0"), bad),
        (failed("vit-s0", message=EVIL), None),
        (outcome("gpt-profile-cpu", kind="profile", cell="gpt-profile-cpu", replicate=None), None),
    ]
    make_night(tmp_path / "night", runs)
    line = {"file": EVIL, "line": 1, "function": EVIL, "source": EVIL, "self_ns": 1, "fraction": 0.5}
    leave_capture(tmp_path / "night", "gpt-profile-cpu", hot_lines=[line], warnings=[EVIL])
    page = render_html(contents(tmp_path, runs))
    parsed = Text(page)
    assert sum(tag == "script" for tag, _ in parsed.tags) == 3
    assert not any(tag == "img" for tag, _ in parsed.tags)
    assert parsed.text.count(EVIL) >= 4
    assert "<script>document.title='hacked'" not in page
    assert EVIL in json.dumps(figures_of(page), ensure_ascii=False)


def test_a_profile_shows_its_hot_lines_and_embeds_its_flame_graph_as_it_is(tmp_path: Path) -> None:
    shown = profile_night(tmp_path)
    (part,) = shown.profiles
    assert part.flamegraph == json.loads(
        (tmp_path / "night" / "jobs" / "gpt-profile-cpu" / "capture" / "flamegraph.json").read_text()
    )
    page = Text(render_html(shown))
    assert "96.0 %" in page.text
    assert "scores = q @ k  # line 9" in page.text
    assert "# line 10" not in page.text


def test_a_damaged_profile_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    shown = profile_night(tmp_path, colour="red")
    assert shown.profiles[0].profile is None
    assert "unknown key 'colour'" in Text(render_html(shown)).text


def test_a_flame_graph_outside_of_the_capture_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"data": []}')
    assert profile_night(tmp_path, flamegraph="../../../../secret.json").profiles[0].flamegraph is None


def test_trends_are_shown_from_the_second_night_on(tmp_path: Path) -> None:
    def titles(nights: int) -> list[str]:
        return [title for title, _ in contents(tmp_path, good_runs(), nights).cells[0].figures]

    assert titles(1) == ["loss", "step time"]
    assert titles(21) == ["loss", "step time", "loss over 21 nights", "step time over 21 nights"]


def test_pairs_are_drawn_with_the_interval(tmp_path: Path) -> None:
    make_night(tmp_path / "night", good_runs())
    for number in range(1, 5):
        leave_pair(tmp_path / "night", CELL, number, (0.06 + 1e-4 * number, 0.05))
    (figure,) = [f for title, f in contents(tmp_path, []).cells[0].figures if title.startswith("step_time against")]
    assert figure["data"][0]["y"] == pytest.approx([20.2, 20.4, 20.6, 20.8])
    assert figure["layout"]["shapes"][1]["y0"] < 20.5 < figure["layout"]["shapes"][1]["y1"]
    assert figure["layout"]["xaxis"]["dtick"] == 1  # each pair has its number on the axis


def test_the_envelope_is_drawn_around_the_baseline() -> None:
    figure = curve_figure([record(0)], "loss", ConvergencePolicy(), baseline().curves[0])
    low, high, line = figure["data"]
    assert all(a < b for a, b in zip(low["y"], high["y"], strict=True))
    assert line["name"] == "seed 0"
    assert figure["layout"]["yaxis"]["title"]["text"] == "loss (nats/token)"
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_the_drawn_envelope_is_as_wide_as_the_judged_one() -> None:
    policy = ConvergencePolicy(alpha=0.01)
    low, high, _ = curve_figure([record(0)], "loss", policy, baseline().curves[0])["data"]
    means = np.log([losses(seed) for seed in range(10)]).reshape(10, policy.blocks, -1).mean(axis=2)
    width = stats.t.ppf(1 - 0.01 / 2 / policy.blocks, 9) * means.std(axis=0, ddof=1) * math.sqrt(1 + 1 / 10)
    drawn = np.log(np.array(high["y"]) / np.array(low["y"])).reshape(policy.blocks, -1)
    np.testing.assert_allclose(drawn.mean(axis=1), 2 * width, rtol=1e-3)  # the page has six digits


def test_a_curve_with_nan_leaves_a_gap_and_valid_json() -> None:
    values = [*losses(0)[:10], math.nan, math.inf]
    figure = curve_figure([record(0, values=values, name="loss")], "loss", ConvergencePolicy(), None)
    assert figure["data"][0]["y"][-2:] == [None, None]
    json.dumps(figure, allow_nan=False)


def test_step_times_are_shown_without_warm_up_in_milliseconds() -> None:
    sample = Sample(name="step_time", unit="s", better="lower", values=(9.0, 0.05, 0.06), warmup=1)
    figure = sample_figure({"seed 0": sample})
    assert figure["data"][0]["x"] == [50.0, 60.0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "step_time (ms)"


def test_a_history_shows_its_levels_a_new_machine_and_what_was_accepted() -> None:
    rng = np.random.default_rng(3)
    values = [*rng.normal(0.050, 0.0003, 40), *rng.normal(0.055, 0.0003, 30), *rng.normal(0.040, 0.0003, 30)]
    series = make_series(values, "c/step_time", machines=["a"] * 70 + ["b"] * 30)
    levels = find_levels(series)
    assert [(level.first, level.end, level.new_environment) for level in levels] == [
        (0, 40, False),
        (40, 70, False),
        (70, 100, True),
    ]
    wanted = Entry(night=series.nights[40], reason="wanted", by="Ada", at="2026-11-21")
    figure = history_figure(series, [wanted])
    texts = [note["text"] for note in figure["layout"]["annotations"]]
    assert re.fullmatch(r"\+(9|10)\.\d %, accepted", texts[0])
    assert texts[1] == "new machine"
    assert figure["layout"]["yaxis"]["title"]["text"] == "step_time (ms)"
    solid = [one for one in figure["layout"]["shapes"] if one["line"].get("dash") == "solid"]
    assert [(one["x0"], one["line"]["color"]) for one in solid][-1] == (39.5, "#10b981")  # before the accepted night
    json.dumps(figure, allow_nan=False)


@pytest.mark.parametrize(("nights", "end"), [(1, 1), (2, 1.5), (30, 29.5)])
def test_the_axis_of_a_history_ends_half_a_night_after_the_last(nights: int, end: float) -> None:
    figure = history_figure(make_series([0.05] * nights, "c/step_time"))
    assert figure["layout"]["xaxis"]["range"] == [-0.5, end]


def test_of_machines_that_take_turns_the_latest_has_its_levels_drawn() -> None:
    rng = np.random.default_rng(3)
    slow = np.arange(120) % 3 == 0
    values = rng.normal(0.050, 0.0003, 120) * np.where(slow, 1.3, 1.0) * np.where(np.arange(120) >= 60, 1.1, 1.0)
    series = make_series(values, "c/step_time", machines=np.where(slow, "slow", "fast").tolist())
    assert [(level.first, level.end) for level in find_levels(series)] == [(1, 61), (61, 120)]
    assert [round(level.median, 3) for level in find_levels(series)] == [0.05, 0.055]


@given(st.lists(st.floats(-1e100, 1e100) | st.just(math.nan), max_size=80), st.integers(1, 5))
def test_any_history_can_be_drawn(values: list[float], machines: int) -> None:
    series = make_series(values, "c/x", machines=[str(place * machines // len(values)) for place in range(len(values))])
    json.dumps(history_figure(series), allow_nan=False)
    assert "nan" not in spark_points(series)
    covered = [place for level in find_levels(series) for place in range(level.first, level.end)]
    assert len(covered) == len(set(covered)) <= len(values)


def test_what_is_not_ok_has_a_card_with_its_history_and_its_capture(tmp_path: Path) -> None:
    slow = [(one, record(seed, values=losses(seed, shift=0.5))) for seed, (one, _) in enumerate(good_runs())]
    profiled = outcome("gpt-profile-cpu-f32-dp1", kind="profile", cell="gpt-profile-cpu-f32-dp1", replicate=None)
    make_night(tmp_path / "night", [*slow, (profiled, None)])
    leave_capture(tmp_path / "night", profiled.job)
    report = tmp_path / "night" / "jobs" / profiled.job / "capture" / "report.html"
    report.write_text("<p>a capture</p>")
    shown = contents(tmp_path, [], nights=30)
    card = shown.causes[0].cards[0]
    assert (card.verdict.series, card.verdict.status) == (f"{CELL}/loss", "regressed")
    assert [title for title, _ in card.figures] == ["loss", "30 nights"]
    assert card.links == ((f"capture {profiled.job}", f"jobs/{profiled.job}/capture/report.html"),)
    assert f'href="jobs/{profiled.job}/capture/report.html"' in render_html(shown)
    assert [row.verdict for row in shown.rows] == list(shown.verdicts.verdicts)


def test_what_is_ok_has_a_row_and_no_card(tmp_path: Path) -> None:
    shown = contents(tmp_path, good_runs())
    assert "ok" in {row.verdict.status for row in shown.rows}
    assert "ok" not in {card.verdict.status for part in shown.causes for card in part.cards}


def test_what_one_change_explains_is_one_card_and_what_is_on_watch_can_be_filtered(tmp_path: Path) -> None:
    folder = tmp_path / "night"
    make_night(folder, [(outcome(), record())])
    red = [make_verdict("regressed", f"cell{number}/step_time") for number in range(12)]
    watched = make_verdict("ok", "cell20/loss", watch=True)
    verdicts = NightVerdicts(night="2026-11-21T0300-1a2b", verdicts=(*red, watched))
    page = Text(render_html(gather(read_night_results(folder), verdicts, POLICIES, tmp_path / "none")))
    assert [attributes["data-cause"] for _, attributes in page.tags if "data-cause" in attributes] == ["regressed"]
    assert "12 series of 12 cells: regressed" in page.text
    assert "and 4 more, all in the table of verdicts" in page.text
    statuses = [
        attributes["data-status"] for tag, attributes in page.tags if tag == "tr" and "data-status" in attributes
    ]
    assert (statuses.count("regressed"), statuses.count("ok watch")) == (12, 1)
    assert ("button", "watch") in [(tag, attributes.get("data-status")) for tag, attributes in page.tags]


@pytest.mark.browser
def test_the_page_draws_what_is_scrolled_to_in_a_real_browser(tmp_path: Path) -> None:
    runs = [*good_runs(), (failed("vit-s0", message=EVIL), None)]
    make_night(tmp_path / "night", runs)
    path = write_reports(tmp_path / "night", contents(tmp_path, runs, nights=30))
    with open_browser(tmp_path / "chromium", Page) as page:
        for width in (1400, 420):
            page.size(width, 900)
            page.navigate(path.as_uri())
            page.wait("document.body?.dataset.figures === '4'")
            for place in range(4):
                page.value(f"document.querySelectorAll('.figure')[{place}].scrollIntoView()")
                page.wait(f"document.querySelectorAll('.figure')[{place}].querySelector('.main-svg') !== null")
            assert page.value("document.documentElement.scrollWidth <= window.innerWidth")
            assert page.value("document.title").startswith("Nightjar: nightly-cpu")
        assert page.problems() == []


@pytest.mark.browser
def test_verdicts_are_filtered_by_text_and_status(tmp_path: Path) -> None:
    path = write_reports(tmp_path / "night", contents(tmp_path, good_runs()))
    shown = "document.querySelectorAll('.verdicts tbody tr:not(.gone)').length"
    with open_browser(tmp_path / "chromium", Page) as page:
        page.navigate(path.as_uri())
        page.wait(f"document.readyState === 'complete' && {shown} === 2")
        page.value("document.querySelector('.filter button.ok').click()")
        assert page.value(shown) == 1
        page.value("document.querySelector('.filter button.ok').click()")
        page.value(
            "document.getElementById('search').value = 'no baseline';"
            "document.getElementById('search').dispatchEvent(new Event('input'))"
        )
        assert page.value(shown) == 1
