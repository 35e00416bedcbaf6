"""The status page: what is red and since when, as data, as badges, as a page, in a browser."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.baselines.accepted import Entry, add_entry
from nightjar_ci.causes.status import (
    ANSWER_TEXT,
    Answer,
    Row,
    describe_environment,
    find_answer,
    find_events,
    find_open,
    read_status,
)
from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_json, write_text
from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.suite import CUT, Case, Suite
from nightjar_ci.formats.verdict import Effect, NightVerdicts, Status, Verdict
from nightjar_ci.images.publish.nightly_index import make_index, render_index
from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.site.html import Page as Shown
from nightjar_ci.site.html import find_headline, render_bisect, render_html
from nightjar_ci.site.write import Sources, render_svg, write_site
from nightjar_ci.store import open_store
from nightjar_ci.store.nights import StoredNight
from tests.browser import Page, open_browser
from tests.called import call
from tests.ci.images.publish.test_support import CUDA, night
from tests.ci.nights import CELL, failed, make_night, outcome, record
from tests.ci.registries import run_registry

SERIES = f"{CELL}/step_time"
EVIL = "</script><script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>\x07{{ 7*7 }}"


def make_verdict(status: Status, series: str = SERIES, **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "series": series,
        "judge": "history",
        "status": status,
        "effect": Effect(value=0.153, unit="of the median before"),
        "interval": (0.141, 0.166),
        "n": 12,
        "policy": {},
        "runs": (f"{CELL}-s0",),
        "explanation": "15.3 % slower than the twelve nights before.",
    }
    return Verdict(**(values | changes))


def stored(day: int, *verdicts: Verdict, jax: str = "0.10.1", **changes: Any) -> StoredNight:
    night = StoredNight(
        id=f"2026-11-{day:02d}T0300-0000",
        matrix="nightly-cpu",
        started_at=f"2026-11-{day:02d}T03:00:00.000+00:00",
        finished_at=f"2026-11-{day:02d}T03:05:30.000+00:00",
        git_sha="c" * 40,
        ran=3,
        statuses={(one.series, one.judge): one.status for one in verdicts},
        loud=tuple(one for one in verdicts if one.status != "ok"),
        environment=f"image:registry.example/nightjar/models:models-2026-11-{day:02d}",
        devices="1 x cpu",
        packages={"jax": jax, "jaxlib": jax},
    )
    return replace(night, **changes)


def nights_of(*statuses: Status | None) -> list[StoredNight]:
    """A night for each status of one series; None where it was not judged."""
    return [stored(day, *([make_verdict(one)] if one else [])) for day, one in enumerate(statuses, 1)]


def only_row(nights: Sequence[StoredNight]) -> Row:
    (row,) = read_status(nights).rows
    return row


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "ok"),
        ({"finished_at": None}, "unfinished"),
        ({"failed": (failed(f"{CELL}-s0"),)}, "failed"),
        ({"ran": 0}, "failed"),
        ({"statuses": {}}, "not_judged"),
        ({"not_run": (f"{CELL}-s0",)}, "cannot_tell"),
        ({"not_run": (f"{CELL}-s0",), "statuses": {}}, "cannot_tell"),
        ({"not_run": (f"{CELL}-s0",), "statuses": {(SERIES, "history"): "regressed"}}, "regressed"),
        ({"statuses": {(SERIES, "history"): "cannot_tell"}}, "cannot_tell"),
        ({"statuses": {("a", "facts"): "cannot_tell", ("b", "facts"): "regressed"}}, "regressed"),
    ],
)
def test_a_night_that_is_not_whole_is_never_ok(changes: Mapping[str, Any], expected: Answer) -> None:
    assert find_answer(replace(stored(1, make_verdict("ok")), **changes)) == expected


def test_a_regression_is_open_since_the_first_night_of_its_unbroken_row() -> None:
    row = only_row(nights_of("ok", "regressed", "ok", "regressed", None, "regressed"))
    (one,) = find_open(row)
    assert (one.since.id, one.nights, one.night.id) == ("2026-11-04T0300-0000", 2, "2026-11-06T0300-0000")


def test_what_changed_is_what_the_first_red_night_has_and_the_night_before_it_has_not() -> None:
    nights = [
        stored(1, make_verdict("ok")),
        stored(2, make_verdict("regressed"), jax="0.10.2", git_sha="d" * 40),
        stored(3, make_verdict("regressed"), jax="0.10.3"),
    ]
    (one,) = find_open(only_row(nights))
    assert one.changes == ("jax 0.10.1 -> 0.10.2", "jaxlib 0.10.1 -> 0.10.2", f"commit {'c' * 12} -> {'d' * 12}")


def test_events_are_the_changes_and_a_doubt_is_none() -> None:
    row = only_row(nights_of("ok", "cannot_tell", "regressed", "cannot_tell", "regressed", "improved", "ok"))
    assert [(event.night.id[8:10], event.kind) for event in find_events(row)] == [
        ("03", "regressed"),
        ("06", "recovered"),
    ]


@given(st.lists(st.sampled_from(["ok", "regressed", "improved", "cannot_tell", None]), max_size=28))
def test_events_alternate_and_begin_with_a_regression(statuses: list[Status | None]) -> None:
    status = read_status(nights_of(*statuses))
    kinds = [event.kind for event in reversed(status.events)]
    assert kinds == [("regressed", "recovered")[number % 2] for number in range(len(kinds))]


def test_nights_in_tonights_image_are_one_row_and_another_machine_is_another() -> None:
    status = read_status([*nights_of("ok", "ok"), stored(3, make_verdict("regressed"), devices="8 x NVIDIA H100")])
    assert [(row.devices, len(row.nights), row.answer) for row in status.rows] == [
        ("8 x NVIDIA H100", 1, "regressed"),
        ("1 x cpu", 2, "ok"),
    ]
    assert len({row.name for row in status.rows}) == 2


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ("image:localhost:5000/nightjar:models-cpu-2026-11-21", "localhost:5000/nightjar:models-cpu"),
        ("image:ghcr.io/o/models@sha256:" + "0" * 64, "ghcr.io/o/models"),
        ("image:nightjar/models:cpu", "nightjar/models:cpu"),
        ("uv:jax==0.10.2,flax>=0.12", "uv:jax,flax"),
        ("current", "current"),
    ],
)
def test_a_place_is_what_does_not_change_from_night_to_night(environment: str, place: str) -> None:
    assert describe_environment(environment) == place


@pytest.mark.parametrize(
    ("statuses", "expected"), [((), "no night yet"), (("ok",), "all is well"), (("regressed",), "1 series regressed")]
)
def test_the_headline_is_the_answer(statuses: Sequence[Status], expected: str) -> None:
    assert find_headline(read_status(nights_of(*statuses))) == expected


@pytest.mark.parametrize("answer", ANSWER_TEXT)
def test_a_badge_says_its_answer_to_eyes_and_screen_readers(answer: Answer) -> None:
    svg = ElementTree.fromstring(render_svg("a <matrix>", answer, "2026-11-21T03:00:00+00:00"))
    assert svg.attrib["aria-label"] == f"a <matrix>: {ANSWER_TEXT[answer]} 2026-11-21"
    svg = ElementTree.fromstring(render_svg("nightly", answer, ""))
    texts = [(text.text or "", float(text.attrib["x"])) for text in svg.findall(".//{*}text")]
    halves = [(float(box.get("x", 0)), float(box.attrib["width"])) for box in svg.findall("{*}g/{*}rect")]
    for (text, middle), (left, width) in zip(texts, halves, strict=True):
        assert width > 6 * len(text)  # room for letters of 11 px
        assert middle == left + width / 2
    assert float(svg.attrib["width"]) == sum(width for _, width in halves)


def make_page(nights: Sequence[StoredNight]) -> str:
    shown = Shown(
        status=read_status(nights), reports={}, verdicts={}, bisections=(), made_at="2026-11-21T04:00:00+00:00"
    )
    return render_html(shown)


def test_what_a_job_wrote_is_text_on_the_page() -> None:
    broken = failed(f"{CELL}-s0", message=EVIL)
    page = make_page([stored(1, make_verdict("regressed", explanation=EVIL), failed=(broken,), matrix=EVIL)])
    assert page.count("<script>") == 1
    assert "<img src=x" not in page
    assert "49" not in page.partition("</style>")[2].partition("{{ 7*7 }}")[0]


def test_the_command_names_the_file_of_the_night_that_is_here() -> None:
    (one,) = find_open(only_row(nights_of("regressed")))
    assert render_bisect(one, {one.night.id: "nights/my run/verdicts.json"}) == (
        f"nightjar-ci bisect --verdict 'nights/my run/verdicts.json' {SERIES}"
    )


def test_a_series_that_no_night_saw_good_has_no_command() -> None:
    assert "bisect --verdict" not in make_page([stored(1, make_verdict("regressed"))])


# From a real store and real night folders.


def test_the_report_also_goes_to_the_summary_of_a_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    night = leave_night(tmp_path / "nights", 1, make_verdict("regressed"))
    policies = tmp_path / "policies.toml"
    policies.write_text('schema = "nightjar.policies/1"\n')
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    done = call(main, "report", night, "--policies", policies, "--baselines", tmp_path, "--summary", summary)
    assert summary.read_text() == "before\n" + (night / "summary.md").read_text()
    assert CELL in summary.read_text()
    assert (done.returncode, done.stdout.strip()) == (0, str(night / "report.html"))


def leave_night(
    folder: Path, day: int, *verdicts: Verdict, jax: str = "0.10.2", tests: Suite | None = None, **changes: Any
) -> Path:
    """A night folder with verdicts and a report, under a name that is not its id."""
    run = record().model_copy(update={"tests": tests})
    environment = run.environment.model_copy(update={"packages": {**run.environment.packages, "jax": jax}})
    run = run.model_copy(update={"environment": environment})
    here = make_night(folder / f"cpu-{day}", [(outcome(**changes), run)], f"2026-11-{day:02d}T0300-0000")
    write_json(here / "verdicts.json", NightVerdicts(night=read_night(here).id, verdicts=verdicts))
    write_text(here / "report.html", f"<!doctype html><title>report of day {day}</title>")
    return here


def make_site(folder: Path, **changes: Any) -> dict[str, Any]:
    """Writes the site of a folder of nights twice, as two nights in a row do; returns its status.json."""
    sources = Sources(nights=folder / "nights", bisections=folder / "bisections", **changes)
    for _ in range(2):
        page, _status = write_site(folder / "site", settings_of(folder), sources)
    document: dict[str, Any] = json.loads((page.parent / "status.json").read_text())
    return document


def settings_of(folder: Path) -> Settings:
    return read_settings({"NIGHTJAR_STATE_DIR": str(folder / "state")})


def test_nights_of_another_machine_are_added_with_their_verdicts_and_reports(tmp_path: Path) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    leave_night(tmp_path / "nights", 2, make_verdict("regressed"))
    status = make_site(tmp_path)
    assert status["answer"] == "regressed"
    (row,) = status["rows"]
    assert [night["answer"] for night in row["nights"]] == ["ok", "regressed"]
    assert (tmp_path / "site" / row["nights"][1]["report"]).read_text().endswith("<title>report of day 2</title>")
    page = (tmp_path / "site" / "index.html").read_text()
    assert "look at changes that are not committed" in page or "the folder is not in git" in page
    assert "bisect --verdict" not in page  # nothing differs between the two nights
    assert (tmp_path / "site" / "badges" / f"{row['name']}.svg").is_file()
    assert [one["verdict"]["series"] for one in status["open"]] == [SERIES]


def test_reds_that_were_wrong_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    statuses: list[Status] = ["ok", "regressed", "ok", "regressed"]
    for day, status in enumerate(statuses, start=5):
        leave_night(tmp_path / "nights", day, make_verdict(status))
    for day in (1, 6):  # the page has no night of the first
        night = f"2026-11-{day:02d}T0300-0000"
        entry = Entry(night=night, false_alarm=True, reason="a backup ran", by="Ada", at=night)
        write_text(*add_entry(tmp_path / "ci" / "baselines", SERIES, entry))
    make_site(tmp_path)
    assert "<b>1 of 2</b><span>reds were wrong</span>" in (tmp_path / "site" / "index.html").read_text()


def test_the_support_matrix_of_the_nightly_images_is_on_the_page(tmp_path: Path) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    assert make_site(tmp_path)["support"] == []
    assert "Support matrix" not in (tmp_path / "site" / "index.html").read_text()
    index = make_index([night("te-cuda12", "2026-11-21", CUDA), night("jax-cpu<b>", "2026-11-21", {"jax": "0.12.0"})])
    (tmp_path / "nightly.json").write_text(render_index(index))
    status = make_site(tmp_path, images=str(tmp_path / "nightly.json"))
    assert [(row["name"], row["cudnn"]) for row in status["support"]] == [("jax-cpu<b>", None), ("te-cuda12", "9.12.0")]
    page = (tmp_path / "site" / "index.html").read_text()
    for text in ("Support matrix", "<th>driver from</th>", "<td>9.12.0</td>", "sm_75 and newer", "jax-cpu&lt;b&gt;"):
        assert text in page
    with pytest.raises(InputError, match=r"absent\.json: no such file"):
        make_site(tmp_path, images=str(tmp_path / "absent.json"))


@pytest.mark.registry
def test_a_page_says_that_a_registry_has_no_nights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    with run_registry(tmp_path / "registry") as registry:
        assert make_site(tmp_path, images=f"{registry.host}/owner/nightjar")["answer"] == "ok"
        page = (tmp_path / "site" / "index.html").read_text()
        assert f"{registry.host}/owner/nightjar has no published nightly image yet." in page
    assert make_site(tmp_path, images=f"{registry.host}/owner/nightjar")["answer"] == "ok"
    page = (tmp_path / "site" / "index.html").read_text()
    assert f"The registry of the images could not be read: {registry.host}/owner/nightjar" in page
    assert "warning: no support matrix" in capsys.readouterr().err


def test_reports_are_published_of_the_latest_nights_only(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        leave_night(tmp_path / "nights", day, make_verdict("ok"))
    (row,) = make_site(tmp_path, reports=1)["rows"]
    assert [night["report"] is not None for night in row["nights"]] == [False, False, True]


def test_the_store_says_where_a_night_ran_and_which_job_failed_at_last(tmp_path: Path) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    leave_night(tmp_path / "nights", 2, state="timeout", exit_code=None, message="too long")
    make_site(tmp_path)
    first, second = open_store(settings_of(tmp_path)).latest_nights(window=10)
    assert (first.environment, first.devices, first.packages["jax"], first.failed) == (
        "current",
        "1 x cpu",
        "0.10.2",
        (),
    )
    assert [one.message for one in second.failed] == ["too long"]
    assert [one.id for one in open_store(settings_of(tmp_path)).latest_nights(window=1)] == [second.id]


@pytest.mark.parametrize(
    ("status", "expected"), [("ok", "all is well in what ran"), ("regressed", "1 series regressed")]
)
def test_the_headline_counts_the_tests_that_had_no_time(tmp_path: Path, status: Status, expected: str) -> None:
    for day, number in ((1, 3), (2, 1017)):
        suite = Suite(cases=tuple(Case(name=f"t{n}", state="skipped", message=f"{CUT}60 s") for n in range(number)))
        leave_night(tmp_path / "nights", day, make_verdict(status), tests=suite, kind="test")
    make_site(tmp_path)
    page = (tmp_path / "site" / "index.html").read_text()
    assert f"<title>Nightjar: {expected}, and 1,017 tests were not run within the time limit</title>" in page


@pytest.mark.parametrize("when", ["2999-11-01T03:00:00+00:00", "0001-01-01T03:00:00+00:00"])
def test_a_clock_that_was_wrong_hides_no_red_night(
    tmp_path: Path, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ahead = leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    write_night(ahead, read_night(ahead).model_copy(update={"started_at": when}))
    red = leave_night(tmp_path / "nights", 2, make_verdict("regressed"))
    local = read_night(red).started_at.removesuffix("+00:00")  # of another program, which writes no offset
    write_night(red, read_night(red).model_copy(update={"started_at": local}))
    assert make_site(tmp_path)["answer"] == "regressed"
    assert 'data-stale-h="192"' in (tmp_path / "site" / "index.html").read_text(), "a row says itself that it is late"
    assert f"is left out: it begins at {when}" in capsys.readouterr().err


def test_an_empty_store_makes_a_page_that_says_how_to_begin(tmp_path: Path) -> None:
    assert make_site(tmp_path)["rows"] == []
    assert "python3 noxfile.py -s quick" in (tmp_path / "site" / "index.html").read_text()


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    done = call(main, "site", "--out", tmp_path / "taken" / "site")
    assert done.returncode == 3
    assert f"error: {tmp_path / 'taken' / 'site'}: the page cannot be written" in done.stderr


@pytest.mark.parametrize("text", ["{", "", '{"schema": "nightjar.night/999"}'])
def test_a_damaged_night_is_left_out(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_night(tmp_path / "nights", 1, make_verdict("ok"))
    write_text(tmp_path / "nights" / "cpu-9" / "night.json", text)
    assert len(make_site(tmp_path)["rows"]) == 1
    assert "cpu-9/night.json" in capsys.readouterr().err


@pytest.mark.browser
def test_the_page_works_from_a_folder_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    statuses: tuple[Status, ...] = ("ok", "ok", "regressed")
    for day, status in enumerate(statuses, 1):
        verdicts = make_verdict(status), make_verdict("ok", f"{CELL}/loss")
        leave_night(tmp_path / "nights", day, *verdicts, jax=f"0.10.{day}")
    make_site(tmp_path)
    with open_browser(tmp_path / "profile", Page) as page:
        page.navigate((tmp_path / "site" / "index.html").as_uri())
        page.wait("document.readyState === 'complete' && document.querySelector('#answer') !== null")
        assert page.value("document.querySelector('#answer').textContent") == "1 series regressed; nights are late"
        assert page.value("document.querySelector('#age .late') !== null")  # the nights are long ago
        assert page.value("document.querySelectorAll('.calendar .square').length") == 3
        assert page.value("[...document.images].every((one) => one.naturalWidth > 0)")
        for width, dark in ((1400, False), (390, False), (390, True)):
            page.size(width, 900, dark=dark)
            assert page.value("document.documentElement.scrollWidth") <= width
        page.size(1400, 900)
        page.click("document.querySelector('[data-copy]')")
        page.wait("document.querySelector('[data-copy]').textContent === 'copied'")
        assert not [url for url in page.requests() if not url.startswith(("file:", "data:"))]
        assert page.problems() == []
        page.click("document.querySelector('.calendar .square')")
        page.wait("document.title === 'report of day 1'")
