"""What is due and absent is never ok: series that vanish, break or change their unit, through the real commands."""

import math
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.cli import main
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.ledger import Due, read_ledger
from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.verdict import Verdict, read_verdicts
from nightjar_ci.gate.presence import judge_presence
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from nightjar_ci.store.folder import import_night
from tests.called import call
from tests.ci.faulty_nights import (
    IDS,
    NIGHTS,
    OTHER,
    PROFILE,
    TONIGHT,
    Edit,
    Results,
    break_curve,
    change_unit,
    drop,
    leave_night,
    put,
    remove_jobs,
    rename,
    results_of,
    sample,
    samples,
    upgrade_without,
)
from tests.ci.nights import CELL
from tests.ci.site.test_site import make_verdict

POLICIES = """schema = "nightjar.policies/1"
[[history]]
measure = "step_time"
[[facts]]
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty good nights, the last of them gated."""
    folder = tmp_path_factory.mktemp("earlier")
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(folder / "state")}))
    for day in range(NIGHTS):
        import_night(store, leave_night(folder / "nights", day, results_of(day)))
    store.add_verdicts(IDS[NIGHTS - 1], [facts_verdict(program) for program in ("train_step", "eval_step")])
    store.close()
    return folder


def facts_verdict(program: str) -> dict[str, Any]:
    return make_verdict("ok", f"{CELL}/{program}", judge="facts").model_dump(mode="json")


@pytest.fixture
def here(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a copy of the earlier nights' store, policies and no baselines."""
    shutil.copytree(earlier / "state", tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    write_text(tmp_path / "ci" / "policies.toml", POLICIES)
    return tmp_path


def nightjar(*arguments: str) -> int:
    return call(main, *arguments).returncode


def gate(folder: Path) -> tuple[int, list[Verdict]]:
    """The exit code of `nightjar-ci gate`, and the verdicts on what is due."""
    code = nightjar("gate", str(folder))
    return code, [one for one in read_verdicts(folder / "verdicts.json").verdicts if one.judge == "presence"]


def gate_edited(here: Path, edit: Edit, day: int = NIGHTS) -> tuple[int, list[Verdict]]:
    results = results_of(day)
    edit(results)
    return gate(leave_night(here / "nights", day, results))


def due(folder: Path, series: str) -> Due:
    (found,) = [one for one in read_ledger(folder / "ledger.json").due if one.series == series]
    return found


nan, inf = math.nan, math.inf
FAULTS: dict[str, tuple[Edit, str, str]] = {
    **{f"{name} is gone": (drop(name), f"{CELL}/{name}", "missing") for name in (
        "step_time", "peak_memory", "bandwidth", "compile_time", "errors", "loss", "accuracy",
    )},
    "a program is gone with a new compiler": (upgrade_without("eval_step"), f"{CELL}/eval_step", "missing"),
    **{f"{name} of another cell is gone": (drop(name, OTHER), f"{OTHER}/{name}", "missing") for name in (
        "step_time", "peak_memory", "loss",
    )},
    "the jobs of a cell are gone": (remove_jobs(OTHER), f"{OTHER}/step_time", "missing"),
    **{f"{name} has another name": (rename(name, new), f"{CELL}/{name}", "missing") for name, new in (
        ("step_time", "time_per_step"), ("peak_memory", "memory"), ("bandwidth", "Bandwidth"), ("errors", "failures"),
    )},
    "all rounds are NaN": (put("step_time", nan, nan, nan, nan, nan), f"{CELL}/step_time", "not_finite"),
    "the only round is NaN": (put("compile_time", nan), f"{CELL}/compile_time", "not_finite"),
    **{f"round {place + 1} of five is NaN": (
        put("bandwidth", *(nan if place == number else 2e9 + number for number in range(5))),
        f"{CELL}/bandwidth", "not_finite",
    ) for place in range(5)},
    "a round of one seed of three is NaN": (
        put("step_time", 0.05, nan, 0.05, seeds=slice(1, 2)), f"{CELL}/step_time", "not_finite",
    ),
    "one seed of three is NaN": (put("peak_memory", nan, seeds=slice(2, 3)), f"{CELL}/peak_memory", "not_finite"),
    "a round is infinite": (put("step_time", 0.05, inf, 0.05, 0.05), f"{CELL}/step_time", "not_finite"),
    "all rounds are infinite": (put("bandwidth", inf, inf), f"{CELL}/bandwidth", "not_finite"),
    "a round is minus infinity": (put("bandwidth", 2e9, -inf, 2e9), f"{CELL}/bandwidth", "not_finite"),
    "a curve ends in NaN": (break_curve("loss", 3.0, 2.5, nan), f"{CELL}/loss", "not_finite"),
    "a curve has NaN and recovers": (break_curve("accuracy", 0.1, nan, 0.9), f"{CELL}/accuracy", "not_finite"),
    "a curve is infinite once": (break_curve("loss", inf, 2.5, 2.0), f"{CELL}/loss", "not_finite"),
    "a curve is empty": (lambda results: [
        curve.update(steps=[], values=[]) for one in results.values() for curve in one["curves"]
    ], f"{CELL}/loss", "missing"),
    **{f"{name} is zero": (put(name, 0.0), f"{CELL}/{name}", "zero") for name in (
        "step_time", "peak_memory", "bandwidth", "compile_time",
    )},
    "a time is negative": (put("step_time", -0.05), f"{CELL}/step_time", "zero"),
    "seconds are milliseconds": (change_unit("step_time", "ms", 1e3), f"{CELL}/step_time", "unit_changed"),
    "seconds are called milliseconds": (change_unit("step_time", "ms"), f"{CELL}/step_time", "unit_changed"),
    "bytes are MiB": (change_unit("peak_memory", "MiB", 2**-20), f"{CELL}/peak_memory", "unit_changed"),
    "one seed of three is in milliseconds": (
        change_unit("step_time", "ms", 1e3, slice(0, 1)), f"{CELL}/step_time", "unit_changed",
    ),
    "higher is better now": (change_unit("step_time", "s", better="higher"), f"{CELL}/step_time", "unit_changed"),
    "a count has a unit": (change_unit("errors", "count/s"), f"{CELL}/errors", "unit_changed"),
    "a number without a unit has one": (change_unit("ratio", "%", 100.0), f"{CELL}/ratio", "unit_changed"),
    "one seed of three left nothing": (lambda results: [
        one["samples"].clear() for job, one in results.items() if job == f"{CELL}-s1"
    ], f"{CELL}/step_time", "missing"),
    "a unit is gone": (change_unit("compile_time", ""), f"{CELL}/compile_time", "unit_changed"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "series", "reason"), FAULTS.values(), ids=FAULTS)
def test_what_is_due_and_absent_ends_with_4_and_is_named(here: Path, edit: Edit, series: str, reason: str) -> None:
    code, found = gate_edited(here, edit)
    assert code == 4
    assert {one.series: one.policy["reason"] for one in found}[series] == reason
    assert due(here / "nights" / TONIGHT, series).measured == reason


def test_an_unchanged_night_is_ok_and_its_ledger_has_every_series(here: Path) -> None:
    assert gate_edited(here, lambda results: None) == (0, [])
    ledger = read_ledger(here / "nights" / TONIGHT / "ledger.json")
    assert due(here / "nights" / TONIGHT, f"{CELL}/step_time").smallest_change == pytest.approx(0.02, rel=0.6)
    assert {one.measured for one in ledger.due} == {"yes"}
    assert {one.name for one in ledger.due if one.cell == CELL} == {
        "step_time", "peak_memory", "bandwidth", "compile_time", "errors", "ratio", "loss", "accuracy",
        "train_step", "eval_step",
    }  # fmt: skip
    assert "device_time" in {one.name for one in ledger.due if one.cell == PROFILE}


def test_an_absent_series_stays_due_until_its_end_is_accepted_and_is_due_again_when_that_is_taken_back(
    here: Path,
) -> None:
    series = f"{CELL}/peak_memory"
    for day in range(NIGHTS, NIGHTS + 6):
        code, found = gate_edited(here, drop("peak_memory"), day)
        assert (code, [one.series for one in found]) == (4, [series])
    assert f"since night {TONIGHT}" in found[0].explanation
    assert nightjar("accept", series, "--ended", "--reason", "not measured any more") == 0
    accepted = here / "ci" / "baselines" / CELL / "accepted" / "peak_memory.toml"
    assert f'night = "{TONIGHT}"\nended = true\n' in accepted.read_text()
    assert gate_edited(here, drop("peak_memory"), NIGHTS + 6) == (0, [])
    accepted.unlink()
    assert gate_edited(here, drop("peak_memory"), NIGHTS + 7)[0] == 4


@pytest.mark.parametrize(
    ("edit", "series"),
    [
        (put("peak_memory", 0.0), f"{CELL}/peak_memory"),
        (put("step_time", 0.0), f"{CELL}/step_time"),
        (put("step_time", 0.05, nan), f"{CELL}/step_time"),
        (put("step_time", nan, seeds=slice(0, 1)), f"{CELL}/step_time"),
        (change_unit("step_time", "ms", 1e3), f"{CELL}/step_time"),
        (lambda results: results[f"{CELL}-s1"]["samples"].pop(), f"{CELL}/ratio"),
        (remove_jobs(OTHER), f"{OTHER}/loss"),
    ],
    ids=["zero", "time zero", "nan", "nan in one seed", "unit", "one seed", "cell"],
)
def test_whatever_is_wrong_is_said_every_night_until_it_is_accepted(here: Path, edit: Edit, series: str) -> None:
    for day in range(NIGHTS, NIGHTS + 8):
        code, found = gate_edited(here, edit, day)
        assert (code, series in {one.series for one in found}) == (4, True)
    (one,) = [one for one in found if one.series == series]
    assert one.policy["since"] == TONIGHT


def test_a_program_that_is_gone_is_said_again_on_the_next_night(here: Path) -> None:
    codes = []
    for day in range(NIGHTS, NIGHTS + 7):
        code, _ = gate_edited(here, drop("eval_step"), day)
        codes.append(code)
    assert codes == [1, *[4] * 6]


def test_a_series_that_comes_back_after_its_end_is_due_again(here: Path) -> None:
    gate_edited(here, drop("peak_memory"))
    assert nightjar("accept", f"{CELL}/peak_memory", "--ended", "--reason", "gone", "--night", TONIGHT) == 0
    for day in (NIGHTS + 1, NIGHTS + 2):
        assert gate_edited(here, lambda results: None, day) == (0, [])
    code, (found,) = gate_edited(here, drop("peak_memory"), NIGHTS + 3)
    assert (code, found.policy["since"]) == (4, IDS[NIGHTS + 3])
    assert nightjar("accept", "*", "--ended", "--reason", "gone again") == 0
    assert gate(here / "nights" / IDS[NIGHTS + 3]) == (0, [])


def test_a_series_that_came_back_three_times_is_due_after_its_second_longest_absence(here: Path) -> None:
    has = [False, True, False, False, True, False, False, False, True, False, False, False]
    codes = [
        gate_edited(here, (lambda results: None) if measured else drop("peak_memory"), NIGHTS + day)[0]
        for day, measured in enumerate(has)
    ]
    assert codes[-4:] == [0, 0, 0, 4]
    assert nightjar("accept", "*", "--ended", "--reason", "gone") == 0  # from the first of these nights, not the fourth
    assert gate_edited(here, drop("peak_memory"), NIGHTS + len(has)) == (0, [])


@pytest.mark.parametrize(
    ("edit", "arguments"),
    [
        (drop("peak_memory"), [f"{CELL}/peak_memory", "--ended"]),
        (rename("bandwidth", "throughput"), [f"{CELL}/bandwidth", "--renamed-to", f"{CELL}/throughput"]),
        (change_unit("step_time", "ms", 1e3), [f"{CELL}/step_time", "--ended"]),
        (put("peak_memory", 0.0), [f"{CELL}/peak_memory"]),
        (put("compile_time", nan), [f"{CELL}/compile_time", "--ended"]),
        (remove_jobs(OTHER), [OTHER, "--ended"]),
    ],
    ids=["gone", "renamed", "unit", "zero", "nan", "cell"],
)
def test_what_was_accepted_is_ok(here: Path, edit: Edit, arguments: list[str]) -> None:
    assert gate_edited(here, edit)[0] == 4
    assert nightjar("accept", *arguments, "--night", TONIGHT, "--reason", "wanted") == 0
    assert gate(here / "nights" / TONIGHT) == (0, [])


def test_the_command_of_the_message_can_be_pasted(here: Path) -> None:
    _, (found,) = gate_edited(here, rename("bandwidth", "throughput"))
    assert f"{CELL}/throughput is new, in the same unit and near its level" in found.explanation
    (line,) = found.details
    command = shlex.split(line.partition("`")[2].rstrip("`"))
    assert nightjar(*command[1:]) == 0
    assert gate(here / "nights" / TONIGHT) == (0, [])


def test_a_renamed_series_keeps_its_history(here: Path) -> None:
    gate_edited(here, rename("step_time", "time_per_step"))
    write_text(here / "ci" / "policies.toml", POLICIES.replace("step_time", "time_per_step"))
    renamed = f"{CELL}/time_per_step"
    assert nightjar("accept", f"{CELL}/step_time", "--renamed-to", renamed, "--reason", "clearer") == 0
    gate_edited(
        here, lambda results: (rename("step_time", "time_per_step")(results), put("time_per_step", 0.15)(results))
    )
    judged = {one.series: one for one in read_verdicts(here / "nights" / TONIGHT / "verdicts.json").verdicts}
    assert judged[renamed].status == "cannot_tell"
    assert judged[renamed].n == NIGHTS + 1


def test_a_renamed_cell_is_named_for_each_of_its_series(here: Path) -> None:
    def edit(results: Results) -> None:
        results["vit2-train-cpu-f32-dp1-s0"] = results.pop(f"{OTHER}-s0")

    code, _ = gate_edited(here, edit)
    assert code == 4
    folder = here / "nights" / TONIGHT
    assert due(folder, f"{OTHER}/peak_memory").renamed_to == "vit2-train-cpu-f32-dp1/peak_memory"
    assert due(folder, f"{OTHER}/step_time").renamed_to == "vit2-train-cpu-f32-dp1/step_time"


def test_a_new_series_far_from_the_level_or_in_another_unit_is_no_new_name(here: Path) -> None:
    def edit(results: Results) -> None:
        for one in samples(results, "bandwidth"):
            one.update(name="messages", values=[12.0])
        for one in samples(results, "peak_memory"):
            one.update(name="memory", unit="GiB")

    _, found = gate_edited(here, edit)
    assert {due(here / "nights" / TONIGHT, one.series).renamed_to for one in found} == {None}


def test_what_was_left_out_by_request_is_not_due(here: Path) -> None:
    folder = leave_night(here / "nights", NIGHTS, {f"{OTHER}-s0": results_of(1)[f"{OTHER}-s0"]}, left_out=(CELL,))
    assert gate(folder) == (0, [])
    notes = read_verdicts(folder / "verdicts.json").notes
    assert f"The night was asked to leave out 1 cell of its matrix: {CELL}." in notes


def test_the_series_of_a_job_that_failed_are_said_by_the_job_alone(here: Path) -> None:
    folder = leave_night(here / "nights", NIGHTS, results_of(NIGHTS))
    night = read_night(folder)
    jobs = [one.model_copy(update={"state": "failed"}) if one.cell == OTHER else one for one in night.jobs]
    write_night(folder, night.model_copy(update={"jobs": tuple(jobs)}))
    assert gate(folder) == (3, [])
    assert due(folder, f"{OTHER}/step_time").measured == "not_run"


def test_what_few_recent_nights_had_is_not_due(here: Path) -> None:
    def edit(results: Results) -> None:
        results[f"{CELL}-s0"]["samples"].append(sample("now_and_then", "s", 1.0))

    for day in (NIGHTS, NIGHTS + 1):
        assert gate_edited(here, edit, day) == (0, [])
    assert gate_edited(here, lambda results: None, NIGHTS + 2) == (0, [])


def test_an_empty_store_learns_the_nights_beside_the_folder(here: Path, earlier: Path) -> None:
    shutil.rmtree(here / "state")
    shutil.copytree(earlier / "nights", here / "nights")
    code, found = gate_edited(here, drop("step_time"))
    assert (code, [one.series for one in found]) == (4, [f"{CELL}/step_time"])
    notes = read_verdicts(here / "nights" / TONIGHT / "verdicts.json").notes
    assert "20 earlier nights joined the store, which did not know them." in notes
    assert gate_edited(here, lambda results: None) == (0, [])
    judged = read_verdicts(here / "nights" / TONIGHT / "verdicts.json").verdicts
    assert [one.n for one in judged if one.judge == "history"] == [NIGHTS + 1] * 2


def test_what_a_policy_names_is_due_though_no_night_had_it(here: Path) -> None:
    named = f'[[history]]\njobs = "{CELL}"\nmeasure = "tokens_per_s"\n'
    write_text(here / "ci" / "policies.toml", POLICIES + named)
    code, (found,) = gate_edited(here, lambda results: None)
    assert (code, found.series) == (4, f"{CELL}/tokens_per_s")
    assert "A policy names it." in found.explanation


def test_report_junit_and_summary_name_what_is_absent(here: Path) -> None:
    gate_edited(here, drop("peak_memory"))
    folder = here / "nights" / TONIGHT
    assert nightjar("report", str(folder)) == 0
    for name in ("report.html", "junit.xml", "summary.md"):
        assert "peak" in (folder / name).read_text()
        assert "5 of the last 5 nights had it" in (folder / name).read_text()
    assert "one due series is absent" in (folder / "report.html").read_text()
    assert "Due series" in (folder / "report.html").read_text()


def test_nights_of_one_minute_are_in_the_order_in_which_they_started(here: Path) -> None:
    """Their ids end in random letters, and do not sort by time."""
    ids = [f"2026-11-25T0300-{letters}" for letters in ("ffff", "0000", "cccc", "aaaa", "bbbb")]
    for second, night in enumerate(ids):
        results = results_of(second)
        drop("peak_memory")(results)
        folder = leave_night(here / "nights", NIGHTS, results)
        moved = folder.rename(folder.with_name(night))
        started = f"2026-11-25T03:00:{second:02d}+00:00"
        write_night(moved, read_night(moved).model_copy(update={"id": night, "started_at": started}))
        code, found = gate(moved)
        assert (code, [one.series for one in found]) == (4, [f"{CELL}/peak_memory"])
    assert nightjar("accept", f"{CELL}/peak_memory", "--ended", "--reason", "gone", "--night", ids[-1]) == 0
    assert gate(moved) == (0, [])


NAMED = [("convergence", "regressed", True), ("facts", "cannot_tell", True)]
UNNAMED = [("convergence", "ok", False), ("history", "regressed", False), ("performance", "cannot_tell", False)]


@pytest.mark.parametrize(("judge", "status", "is_named"), NAMED + UNNAMED)
def test_what_is_absent_is_said_unless_a_judge_has_named_it(judge: str, status: str, is_named: bool) -> None:
    series = f"{CELL}/loss"
    spelt = {"kind": "curve", "unit": "nats", "better": "lower", "had": 5, "of": 5, "not_judged": "no job left it"}
    due = Due.model_validate({"series": series, "measured": "missing", **spelt})
    verdict = Verdict.model_validate({**facts_verdict("x"), "series": series, "judge": judge, "status": status})
    assert [made.series for made in judge_presence([due], [verdict], "tonight")] == ([] if is_named else [series])
