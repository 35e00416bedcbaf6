"""The report of a night as data and as HTML; in a browser where there is one."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nightjar_ci.baselines import write_convergence
from nightjar_ci.gate import judge_night
from nightjar_ci.outcome import Outcome
from nightjar_ci.policy import ConvergencePolicy, Policies
from nightjar_ci.record import RunRecord, Sample
from nightjar_ci.report.contents import Contents, gather
from nightjar_ci.report.figures import curve_figure, sample_figure, trend_figure
from nightjar_ci.report.html import render_html
from nightjar_ci.report.write import write_reports
from tests.ci.nights import CELL, baseline, failed, leave_capture, leave_pair, losses, make_night, outcome, record

POLICIES = Policies.model_validate(
    {"schema": "nightjar.policies/1", "convergence": [{}], "facts": [{}], "performance": [{}]}
)
EVIL = "<script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>\u2028</script>{{ 7*7 }}"


@dataclass(frozen=True)
class Point:
    night: str
    started_at: str
    value: float
    unit: str = "s"


class Memory:
    """A store with a history of as many nights."""

    def __init__(self, nights: int) -> None:
        self.nights = nights

    def history(self, cell: str, name: str) -> Sequence[Point]:
        return [Point(f"n{day}", f"2026-11-{day:02d}T03:00:00+00:00", 0.05) for day in range(1, self.nights + 1)]


def contents(tmp_path: Path, runs: list[tuple[Outcome, RunRecord | None]], nights: int = 1) -> Contents:
    write_convergence(tmp_path / "baselines", baseline())
    folder = tmp_path / "night"
    if not (folder / "night.json").exists():
        make_night(folder, runs)
    verdicts = judge_night(folder, POLICIES, tmp_path / "baselines")
    return gather(folder, verdicts, POLICIES, tmp_path / "baselines", Memory(nights))


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
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert EVIL in json.dumps(json.loads(found[1]), ensure_ascii=False)


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
    assert titles(21) == ["loss", "step time", "step time over 21 nights", "loss over 21 nights"]


def test_pairs_are_drawn_with_the_interval(tmp_path: Path) -> None:
    make_night(tmp_path / "night", good_runs())
    for number in range(1, 5):
        leave_pair(tmp_path / "night", CELL, number, (0.06 + 1e-4 * number, 0.05))
    (figure,) = [f for title, f in contents(tmp_path, []).cells[0].figures if title.startswith("step_time against")]
    assert figure["data"][0]["y"] == pytest.approx([20.2, 20.4, 20.6, 20.8])
    assert figure["layout"]["shapes"][1]["y0"] < 20.5 < figure["layout"]["shapes"][1]["y1"]


def test_the_envelope_is_drawn_around_the_baseline() -> None:
    figure = curve_figure([record(0)], "loss", ConvergencePolicy(), baseline().curves[0])
    low, high, line = figure["data"]
    assert all(a < b for a, b in zip(low["y"], high["y"], strict=True))
    assert line["name"] == "seed 0"
    assert figure["layout"]["yaxis"]["type"] == "log"


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


def test_a_trend_draws_the_median_of_each_night() -> None:
    points = [
        ("2026-11-01", "a", 1.0),
        ("2026-11-01", "a", 3.0),
        ("2026-11-02", "b", math.nan),
        ("2026-11-03", "c", 5.0),
    ]
    figure = trend_figure(points, "loss", "nats")
    assert figure["data"][0]["y"] == [2.0, 5.0]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_the_page_draws_every_figure_in_a_real_browser(tmp_path: Path) -> None:
    runs = [*good_runs(), (failed("vit-s0", message=EVIL), None)]
    make_night(tmp_path / "night", runs)
    path = write_reports(tmp_path / "night", contents(tmp_path, runs, nights=3))
    assert CHROMIUM is not None
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [CHROMIUM, *quiet, "--virtual-time-budget=10000", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert 'data-drawn="4"' in shown.stdout
    assert shown.stdout.count('class="main-svg"') >= 4
    assert "<title>Nightjar: nightly-cpu" in shown.stdout
