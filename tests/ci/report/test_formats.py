"""JUnit XML, markdown and terminal."""

import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from nightjar_ci.causes.causes import Cause
from nightjar_ci.formats.night_folder import Night, read_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import Sample
from nightjar_ci.formats.suite import CUT, Case, Suite
from nightjar_ci.formats.verdict import WORST_FIRST, Effect, NightVerdicts, Status, Verdict
from nightjar_ci.gate.gate import judge_night
from nightjar_ci.report.contents import Contents, gather, with_unit
from nightjar_ci.report.html import render_html, show_effect
from nightjar_ci.report.markdown import escape, render_markdown
from nightjar_ci.report.terminal import print_causes, print_checked, print_verdicts
from nightjar_ci.report.write import render_junit
from tests.ci.nights import CELL, failed, make_night, outcome, record
from tests.ci.site.test_site import make_verdict

POLICIES = Policies.model_validate(
    {"schema": "nightjar.policies/1", "convergence": [{}], "facts": [{}], "performance": [{}]}
)


def verdict(status: Status, explanation: str = "It is so.", series: str = f"{CELL}/loss") -> Verdict:
    return make_verdict(status, series, judge="convergence", explanation=explanation, details=("why",))


def night(tmp_path: Path, message: str = "it broke") -> Path:
    return make_night(tmp_path, [(outcome(f"{CELL}-s0"), record(0)), (failed(f"{CELL}-s1", "timeout", message), None)])


def test_junit_has_a_case_per_job_and_per_verdict(tmp_path: Path) -> None:
    verdicts = NightVerdicts(night="n", verdicts=tuple(verdict(status) for status in WORST_FIRST))
    root = ElementTree.fromstring(render_junit(read_night(night(tmp_path)), verdicts))
    jobs, judged = root.findall("testsuite")
    assert [(case.get("name"), [child.tag for child in case]) for case in jobs] == [
        (f"{CELL}-s0", []),
        (f"{CELL}-s1", ["error"]),
    ]
    assert [child.tag for case in judged for child in case] == ["failure", "skipped", "system-out", "system-out"]
    assert judged.attrib["failures"] == judged.attrib["skipped"] == "1"
    assert jobs.attrib["errors"] == "1"


def test_junit_says_since_when_a_series_is_red_and_what_changed(tmp_path: Path) -> None:
    red = verdict("regressed")
    cause = Cause(
        kind="regressed", title="", explanation="", verdicts=(red,), since="n", good="m", nights=1,
        changes=("commit a -> b",),
    )  # fmt: skip
    verdicts = NightVerdicts(night="n", verdicts=(red,))
    text = ElementTree.fromstring(render_junit(read_night(night(tmp_path)), verdicts, [cause])).findtext(".//failure")
    assert text is not None
    assert text.splitlines()[-2:] == ["since: New tonight; the last good night is m.", "what changed: commit a -> b."]


@given(st.text())
def test_junit_is_well_formed_whatever_a_job_writes(text: str) -> None:
    job = failed("cell-s0", message=text)
    made = Night(id="n", matrix="m", started_at="2026-11-21", finished_at=None, git=None, jobs=(job,))
    ElementTree.fromstring(render_junit(made, NightVerdicts(night="n", verdicts=(verdict("regressed", text),))))


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zs", "Zl", "Zp"]), min_size=1))
def test_escaped_text_is_shown_by_markdown_as_it_is(text: str) -> None:
    shown = MarkdownIt("commonmark", {"html": True}).renderInline(f"x{escape(text)}x")
    plain = shown.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    assert plain == f"x{text}x"


def test_the_summary_names_failures_and_the_worst_verdicts_first(tmp_path: Path) -> None:
    folder = night(tmp_path, "timed out | after <b>600 s</b>\nmore")
    verdicts = judge_night(read_night_results(folder), POLICIES, tmp_path / "none")
    summary = render_markdown(gather(read_night_results(folder), verdicts, POLICIES, tmp_path / "none"))
    assert summary.startswith("## Nightjar, nightly-cpu: a job did not complete")
    assert r"timed out \| after &lt;b&gt;600 s&lt;/b&gt; |" in summary
    assert "🟡 cannot tell" in summary
    assert "performance judge is off" in summary


def test_tests_that_had_no_time_are_a_number_of_their_own(tmp_path: Path) -> None:
    cases = [Case(name=f"a.test_{number}", state="passed") for number in range(3)]
    cases.append(Case(name="a.test_gpu", state="skipped", message="no GPU"))
    cases += [Case(name=f"a.test_late{number}", state="skipped", message=f"{CUT}180 s") for number in range(1017)]
    suite = Suite(cases=tuple(cases))
    made = record(0, facts=[]).model_copy(update={"tests": suite, "curves": (), "samples": ()})
    folder = make_night(tmp_path, [(outcome("lib-tests", kind="test"), made)])
    policies = Policies.model_validate({"schema": "nightjar.policies/1"})
    results = read_night_results(folder)
    verdicts = judge_night(results, policies, tmp_path / "none")
    contents = gather(results, verdicts, policies, tmp_path / "none")
    said = "all is well in what ran, and 1,017 tests were not run within the time limit"
    assert (contents.exit_code, contents.exit_text) == (0, said)
    lines = render_markdown(contents).splitlines()
    assert any(line.endswith("| flaky | skipped | not run in time |") for line in lines)
    assert any(line.endswith("| 3/3 | 0 | 0 | 0 | 1 | 1,017 |") for line in lines)
    page = render_html(contents)
    assert '<b class="cannot_tell">1,017</b><span>tests not run in time</span>' in page
    assert 'class="brief"><summary>3/3 tests passed' not in page  # a brief summary is cut where it ends
    assert "<summary>3/3 tests passed, 1 skipped, 1,017 not run within the time limit." in page


def checking_night(tmp_path: Path) -> Contents:
    """A night of two jobs that checked numbers, in environments that differ in all but JAX."""
    checks = {"check.mass": 1.0000025, "expected.mass": "1 +- 0.1: mass | is kept", "check.unexplained": 1.0}
    jobs = []
    for number in (1, 2):
        made = record(0, config={**checks, "versions": f"lib {number} with jax 0.10.2"}, facts=[])
        packages = {"jax": "0.10.2", "optax": str(number)}
        rate = Sample(name="throughput", unit="env steps/s", better="higher", values=(244.0,))
        environment = made.environment.model_copy(update={"packages": packages})
        changed = {"environment": environment, "curves": (), "samples": (rate,)}
        jobs.append((outcome(f"lib{number}-smoke-cpu"), made.model_copy(update=changed)))
    folder, policies = make_night(tmp_path, jobs), Policies.model_validate({"schema": "nightjar.policies/1"})
    return gather(
        read_night_results(folder),
        judge_night(read_night_results(folder), policies, tmp_path / "none"),
        policies,
        tmp_path / "none",
    )


def test_numbers_that_a_job_checked_are_shown_with_the_versions_it_tried(tmp_path: Path) -> None:
    contents = checking_night(tmp_path)
    assert contents.exit_text == "all jobs completed and checked 2 numbers"
    page, summary = render_html(contents), render_markdown(contents)
    assert 'lib 1 with jax 0.10.2</div><div class="small">244 env steps/s</div>' in page
    assert '<td>mass</td><td class="num">1</td><td>1 +- 0.1: mass | is kept</td>' in page
    assert "| lib2-smoke-cpu | lib 2 with jax 0.10.2 | 1 | 244 env steps/s |" in summary
    console = Console(width=20, record=True, file=io.StringIO())
    print_checked(contents.checked, console)
    assert "lib2-smoke-cpu: lib 2 with jax 0.10.2: 1 number checked, 244 env steps/s\n" in console.export_text()


def test_the_environment_shows_only_what_all_jobs_share(tmp_path: Path) -> None:
    shown = dict(checking_night(tmp_path).environment)
    assert shown["jax"] == "0.10.2"
    assert "optax" not in shown


def test_the_performance_judge_is_off_only_where_it_could_judge(tmp_path: Path) -> None:
    assert checking_night(tmp_path).verdicts.notes == ()


def printed(verdicts: NightVerdicts, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_verdicts(verdicts, console)
    return console.export_text()


def test_the_terminal_shows_text_of_jobs_as_it_is() -> None:
    evil = "[red]not markup[/red]"
    assert printed(NightVerdicts(night="n", verdicts=(verdict("regressed", evil),), notes=(evil,))).count(evil) == 2


def test_the_terminal_shows_no_table_where_nothing_was_judged() -> None:
    assert printed(NightVerdicts(night="n", verdicts=(), notes=("nothing to judge",))) == "nothing to judge\n"


def make_cause(title: str, **changes: Any) -> Cause:
    kept = {"explanation": "why", "since": "n2", "good": "n1", "nights": 1, "changes": ("jax 0.10.1 -> 0.10.2",)}
    return Cause(kind="regressed", title=title, **{**kept, "command": "nightjar-ci bisect", **changes})


def test_the_terminal_and_the_summary_say_what_changed_with_a_regression_and_what_to_run(tmp_path: Path) -> None:
    causes = [make_cause("[red]a[/red]"), replace(make_cause("b"), kind="improved")]
    console = Console(width=20, record=True, file=io.StringIO())
    print_causes(causes, console)
    assert console.export_text().splitlines() == [
        "[red]a[/red]",
        "  since: New tonight; the last good night is n1.",
        "  what changed: jax 0.10.1 -> 0.10.2.",
        "  run: nightjar-ci bisect",
    ]
    results, verdicts = read_night_results(night(tmp_path)), NightVerdicts(night="n", verdicts=(), notes=())
    summary = render_markdown(gather(results, verdicts, POLICIES, tmp_path / "none", None, causes))
    assert "- what changed: jax 0.10.1 -&gt; 0.10.2.\n- run: `nightjar-ci bisect`\n" in summary
    assert "**b**" not in summary


@pytest.mark.parametrize(
    ("value", "interval", "shown"),
    [
        (0.0312, (0.02, 0.04), "+3.12 % (+2.00 to +4.00)"),
        (-0.5, None, "-50.00 %"),
        (9.5, (0.1, 1e9), "+950.00 % (+10.00 to x 1e9)"),
        (3.2e8, (2.9e8, 3.5e8), "x 3.2e8 (x 2.9e8 to x 3.5e8)"),
    ],
)
def test_a_change_tenfold_is_shown_as_a_factor(value: float, interval: tuple[float, float] | None, shown: str) -> None:
    effect = Effect(value=value, unit="mean")
    found = verdict("regressed").model_copy(update={"effect": effect, "interval": interval})
    assert show_effect(found) == shown
    in_its_unit = found.model_copy(update={"judge": "history", "policy": {"scale": "linear"}})
    assert show_effect(in_its_unit) == ""  # bytes are no percentage


@pytest.mark.parametrize(("number", "more"), [(9, 0), (10, 0), (11, 1)])
def test_ten_causes_are_on_the_terminal_and_in_the_summary(tmp_path: Path, number: int, more: int) -> None:
    causes = [make_cause(f"title{place}") for place in range(number)]
    console = Console(width=80, record=True, file=io.StringIO())
    print_causes(causes, console)
    text = console.export_text()
    assert text.count("title") == min(number, 10)
    assert (f"{more} more causes are in the report" in text) == (more > 0)
    results, verdicts = read_night_results(night(tmp_path)), NightVerdicts(night="n", verdicts=(), notes=())
    summary = render_markdown(gather(results, verdicts, POLICIES, tmp_path / "none", None, causes))
    assert summary.count("title") == min(number, 10)


@pytest.mark.parametrize(("number", "more"), [(19, ""), (20, ""), (21, "1 more are ok.")])
def test_twenty_verdicts_that_are_ok_are_in_the_summary(tmp_path: Path, number: int, more: str) -> None:
    verdicts = NightVerdicts(night="n", verdicts=tuple(verdict("ok", series=f"c/ok{n}") for n in range(number)))
    summary = render_markdown(gather(read_night_results(night(tmp_path)), verdicts, POLICIES, tmp_path / "none"))
    assert summary.count("c/ok") == min(number, 20)
    assert more in summary


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0513, "s", "51.3 ms"),
        (0.9994, "s", "999 ms"),
        (0.9996, "s", "1 s"),
        (-0.9996, "s", "-1 s"),
        (1.0, "s", "1 s"),
        (1000.0, "s", "1,000 s"),
        (999.4, "bytes", "999 B"),
        (999.6, "bytes", "1,000 B"),
        (1023, "bytes", "1,023 B"),
        (1024, "bytes", "1 KiB"),
        (1000 * 1024, "bytes", "1,000 KiB"),
        (1023.6 * 1024, "bytes", "1 MiB"),
        (3.2e8, "bytes", "305 MiB"),
        (5000 * 1024**4, "bytes", "5,000 TiB"),
        (999.4, "tokens/s", "999 tokens/s"),
        (999.7, "tokens/s", "1,000 tokens/s"),
        (-41234.6, "tokens/s", "-41,235 tokens/s"),
        (0.0, "x", "0 x"),
    ],
)
def test_a_value_has_three_digits_and_no_power_of_ten(value: float, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text
