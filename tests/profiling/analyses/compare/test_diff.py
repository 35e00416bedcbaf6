import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_profiling.analyses.compare.change import Mean, average_captures, rank_changes
from nightjar_profiling.analyses.compare.diff import Diff, Side
from nightjar_profiling.analyses.compare.diff import compare as compare_captures
from nightjar_profiling.analyses.compare.diff_match import Line, match_lines
from nightjar_profiling.capture_folder.manifest import Manifest, write_manifest
from nightjar_profiling.capture_folder.tables import Tables, write_tables
from nightjar_profiling.commands.diff import find_captures, parse_percent
from nightjar_profiling.errors import InputError
from tests.profiling.conftest import Run
from tests.profiling.tabled import RUN, op, tables

MS = 1_000_000
Spent = dict[str, list[int]]


def capture(
    spent: Spent, lines: dict[str, int] | None = None, program: str = "jit_step", fingerprint: str = "f"
) -> Tables:
    """A program in which an instruction takes so many ns in each execution, and belongs to a line of train.py."""
    lines = lines or {name: number for number, name in enumerate(sorted(spent), start=1)}
    count = max(len(ns) for ns in spent.values())
    return tables(
        programs=[{"program_id": 1, "name": program, "fingerprint": fingerprint}],
        instructions=[
            {"program_id": 1, "name": name, "opcode": "dot", "op_name": f"jit/{name}", "frame_id": lines[name]}
            for name in spent
        ],
        frames=[
            {"program_id": 1, "frame_id": line, "file": "/me/train.py", "line": line, "function": "loss"}
            for line in sorted(set(lines.values()))
        ],
        executions=[{**RUN, "execution": n, "start_ns": n, "duration_ns": 1} for n in range(count)],
        ops=[op(name, n, ns, execution=n) for name, found in spent.items() for n, ns in enumerate(found)],
        attribution=[
            {
                **{"program_id": 1, "instruction": name, "weight": 1.0, "root_weight": 1.0},
                "frame_id": line,
                "how": "own",
            }
            for name, line in lines.items()
        ],
    )


def side(found: Tables, text: dict[int, str] | None = None) -> Side:
    return Side(tables=found, is_user_code=lambda _: True, source_of=lambda _, line: (text or {}).get(line))


def compare(before: Side, after: Side) -> Diff:
    return compare_captures([before], [after])


def compared(before: Spent, after: Spent, **more: Any) -> Diff:
    return compare(side(capture(before)), side(capture(after, **more)))


STEADY: Spent = {"a": [100, 102, 101, 99], "b": [50, 51, 50, 49]}


def test_a_slower_instruction_is_ranked_first_with_an_interval_that_excludes_zero() -> None:
    found = compared(STEADY, {**STEADY, "b": [90, 91, 90, 89]})
    worst = found.lines[0]
    assert (worst.name, worst.before_ns, worst.after_ns) == ("/me/train.py:2", 50, 90)
    assert worst.low_ns is not None
    assert worst.high_ns is not None
    assert [worst.low_ns, worst.high_ns] == pytest.approx([37.82, 42.23], abs=0.01)
    assert not worst.certain  # the same program, in one process each
    assert found.instructions[0].name == "b"
    assert found.total.fraction == pytest.approx(40 / 150.5, rel=0.01)
    assert not found.lines[1].certain


def test_a_capture_against_itself_changed_nothing() -> None:
    found = compared(STEADY, STEADY)
    assert {one.delta_ns for one in (found.total, *found.programs, *found.lines, *found.instructions)} == {0}
    assert not found.total.certain


def test_captures_of_different_lengths_are_compared_by_the_step() -> None:
    found = compared(STEADY, {name: ns * 5 for name, ns in STEADY.items()})
    assert found.executions == (4, 20)
    assert found.total.delta_ns == pytest.approx(0)


def test_added_and_removed_instructions_are_reported() -> None:
    found = compared(STEADY, {"a": STEADY["a"], "c": [7, 7, 7, 7]}, lines={"a": 1, "c": 9}, fingerprint="g")
    assert {one.name for one in found.instructions if one.before_ns is None} == {"c"}
    assert {one.name for one in found.instructions if one.after_ns is None} == {"b"}


def test_a_line_that_only_one_side_has_appeared_or_vanished() -> None:
    longer, lines = {**STEADY, "c": [7, 7, 7, 7]}, {"a": 1, "b": 2, "c": 3}
    (there,) = [one for one in compared(STEADY, longer, lines=lines).lines if one.before_ns is None]
    assert (there.name, there.after_ns, there.fraction) == ("/me/train.py:3", 7, None)
    (back,) = [one for one in compared(longer, STEADY).lines if one.after_ns is None]
    assert (back.name, back.before_ns, back.fraction) == ("/me/train.py:3", 7, -1)


def test_lines_that_moved_are_the_same_lines() -> None:
    before = side(capture(STEADY), {1: "x = a()", 2: "y = b()"})
    moved = capture({**STEADY, "b": [90, 91, 90, 89]}, lines={"a": 11, "b": 12}, fingerprint="g")
    found = compare(before, side(moved, {11: "x = a()", 12: "y = b()"}))
    assert [(one.name, one.before_ns, one.after_ns) for one in found.lines if one.before_ns != one.after_ns] == [
        ("/me/train.py:12", 50, 90)
    ]
    assert found.lines[0].source == "y = b()"


def test_renumbered_instructions_are_matched_by_opcode_name_and_line() -> None:
    before = capture({"dot.1": [10, 10], "dot.2": [20, 20]}, lines={"dot.1": 1, "dot.2": 2})
    after = capture({"dot.7": [10, 10], "dot.9": [35, 35]}, lines={"dot.7": 1, "dot.9": 2}, fingerprint="g")
    names = {"dot.1": "jit/f", "dot.2": "jit/g", "dot.7": "jit/f", "dot.9": "jit/g"}
    for one in (before, after):
        renamed = one.instructions.with_columns(op_name=one.instructions["name"].replace(names))
        object.__setattr__(one, "instructions", renamed)
    found = compare(side(before), side(after))
    assert [(one.name, one.before_ns, one.after_ns) for one in found.instructions] == [
        *[("dot.9", 20, 35), ("dot.7", 10, 10)]
    ]


def test_one_execution_gives_no_interval_and_a_warning() -> None:
    found = compared({"a": [100]}, {"a": [110]})
    assert (found.total.low_ns, found.total.high_ns) == (None, None)
    assert "fewer than two executions" in found.warnings[0]


def with_second(step: Tables, name: str, spent: list[int]) -> Tables:
    """A capture with a second program, of one instruction."""
    other = tables(
        programs=[{"program_id": 2, "name": name, "fingerprint": name}],
        executions=[
            {**RUN, "program_id": 2, "execution": n, "start_ns": n, "duration_ns": 1} for n in range(len(spent))
        ],
        ops=[op("x", n, ns, execution=n, program_id=2) for n, ns in enumerate(spent)],
    )
    return Tables(**{table: getattr(step, table).vstack(getattr(other, table)) for table in step.__slots__})


def test_a_program_that_ran_once_is_not_part_of_a_step() -> None:
    step = capture({"a": [100, 102, 98]})
    found = compare(side(step), side(with_second(step, "jit_init", [10_000])))
    assert found.total.delta_ns == pytest.approx(0)
    assert {one.name: one.before_ns for one in found.programs} == {"jit_init": None, "jit_step": pytest.approx(100)}


def test_a_step_of_another_name_is_the_step_though_both_captures_ran_a_small_program() -> None:
    steps = (
        capture({"a": [100, 102, 98]}),
        capture({"a": [100, 102, 98] * 2}, program="jit_train_step", fingerprint="g"),
    )
    found = compare(*(side(with_second(step, "jit_evaluate", [10])) for step in steps))
    assert (found.total.before_ns, found.total.delta_ns) == pytest.approx((100, 0))


def test_kernels_of_a_trace_without_hlo_are_ranked_by_name() -> None:
    def bare(slow: int) -> Tables:
        found = capture({"a": [100, 102, 98], "b": [slow, slow + 1, slow - 1]})
        return replace(found, instructions=found.instructions.clear(), attribution=found.attribution.clear())

    found = compare(side(bare(10)), side(bare(200)))
    assert found.instructions[0].name == "b"
    assert found.instructions[0].delta_ns == pytest.approx(190)


def test_a_program_that_runs_twice_in_a_step_counts_twice_and_so_does_its_doubt() -> None:
    alone, twice = (
        next(one for one in compare(*map(side, sides)).programs if one.name == "jit_inner")
        for sides in (
            [with_second(step, "jit_inner", spent) for spent in ([20, 24, 22, 22], [31, 29, 30, 33])]
            for step in (tables(), capture({"a": [500, 500]}))
        )
    )
    assert (twice.low_ns, twice.delta_ns) == pytest.approx((2 * (alone.low_ns or 0), 2 * alone.delta_ns))


def test_empty_captures_are_equal() -> None:
    found = compare(side(tables()), side(tables()))
    assert found.total.delta_ns == 0
    assert found.lines == ()
    assert len(found.warnings) == 2


@settings(deadline=None)  # many small frames are joined
@given(
    st.lists(st.integers(1, 10**12), min_size=2, max_size=8), st.lists(st.integers(1, 10**12), min_size=2, max_size=8)
)
@pytest.mark.slow
def test_a_diff_the_other_way_round_is_its_mirror_image(before: list[int], after: list[int]) -> None:
    there, back = compared({"a": before}, {"a": after}).total, compared({"a": after}, {"a": before}).total
    assert there.delta_ns == -back.delta_ns
    assert there.low_ns is not None
    assert back.high_ns is not None
    assert there.low_ns >= -sum(before) / len(before)  # nothing takes less than no time
    there_ratio, back_ratio = (1 + there.low_ns * len(before) / sum(before), 1 + back.high_ns * len(after) / sum(after))
    assert there_ratio == pytest.approx(
        1 / back_ratio, rel=1e-6, abs=1e-6
    )  # near 0 it is what cancels out that is left


def test_lines_are_matched_by_function_and_text_and_otherwise_in_order() -> None:
    old = [Line("/a/m.py", 1, "f"), Line("/a/m.py", 2, "f"), Line("/a/m.py", 9, "g")]
    new = [Line("/b/m.py", 5, "f"), Line("/b/m.py", 6, "f")]
    texts = {("/a/m.py", 1): "x = 1", ("/a/m.py", 2): "y = x @ w", ("/b/m.py", 5): "x = 1", ("/b/m.py", 6): "y = x * w"}
    pairs = match_lines(old, new, lambda f, n: texts.get((f, n)), lambda f, n: texts.get((f, n)))
    assert pairs == {old[0]: new[0], old[1]: new[1]}


@pytest.mark.parametrize("text", ["", "five", "-1%", "inf", "nan"])
def test_a_limit_that_is_not_a_percentage_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--fail-above"):
        parse_percent(text)


def folder(path: Path, found: Tables) -> Path:
    path.mkdir()
    write_tables(path / "tables", found)
    write_manifest(path, Manifest(backend="jax", exit_code=0))
    return path


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ([100, 102, 101, 99], 0),
        ([103, 102, 101, 102], 0),  # slower, but less than the limit
        ([130, 131, 132, 130], 4),  # slower, but two processes of one program may differ as much
        ([90, 130, 101, 105], 4),  # too noisy
        ([130], 4),  # too few
    ],
)
def test_a_gate_says_yes_no_or_cannot_tell(tmp_path: Path, run_command: Run, after: list[int], code: int) -> None:
    a = folder(tmp_path / "a", capture({"a": [100, 102, 101, 99]}))
    b = folder(tmp_path / "b", capture({"a": after}))
    assert run_command("diff", a, b, "--fail-above", "5%").returncode == code
    assert run_command("diff", a, b).returncode == 0


def test_a_gate_whose_reader_went_away_still_gives_its_answer(tmp_path: Path) -> None:
    a = folder(tmp_path / "a", capture({"a": [100, 102, 101, 99]}))
    more = folder(tmp_path / "b", capture({"a": [100, 102, 101, 99], "b": [30, 31, 32, 30]}, lines={"a": 1, "b": 2}))
    for after, code in ((a, 0), (more, 1)):
        words = [sys.executable, "-m", "nightjar_profiling", "diff", str(a), str(after), "--fail-above", "5%"]
        reads, writes = os.pipe()
        os.close(reads)
        ended = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writes)
        assert (ended.returncode, "Error" in ended.stderr) == (code, False), ended.stderr


def test_a_gate_says_no_if_the_program_is_another_or_captures_agree(tmp_path: Path, run_command: Run) -> None:
    steady = {"a": [100, 102, 101, 99]}
    for name in ("a1", "a2", "a3"):
        folder(tmp_path / name, capture(steady))
    for number, name in enumerate(("b1", "b2", "b3")):
        folder(tmp_path / name, capture({"a": [130 + number, 131, 132]}))
    more = folder(tmp_path / "more", capture({**steady, "b": [30, 31, 32, 30]}, lines={"a": 1, "b": 2}))
    gate = ("--fail-above", "5%")
    assert run_command("diff", tmp_path / "a1", more, *gate).returncode == 1
    several = [",".join(str(tmp_path / f"{side}{number}") for number in (1, 2, 3)) for side in "ab"]
    judged = run_command("diff", *several, *gate)
    assert (judged.returncode, "9 executions in 3 captures" in judged.stdout) == (1, True)
    assert run_command("diff", several[0], tmp_path / "b1", *gate).returncode == 4


def test_a_side_may_be_a_folder_of_captures_but_none_of_them_twice(tmp_path: Path) -> None:
    for name in ("runs/1", "runs/2/capture", "runs/3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        folder(tmp_path / name, capture(STEADY))
    expected = [tmp_path / "runs" / name for name in ("1", "3", "2/capture")]
    assert find_captures(str(tmp_path / "runs")) == expected
    assert find_captures(str(expected[0])) == expected[:1]
    assert find_captures(str(tmp_path / "none")) == [tmp_path / "none"]
    assert find_captures(",") == [Path(",")]  # which is then said to be no capture
    with pytest.raises(InputError, match="twice"):
        find_captures(f"{expected[0]},{tmp_path}/runs/../runs/1")


def test_captures_that_differ_among_themselves_are_not_called_different() -> None:
    slow, fast = {"a": [130, 131, 130]}, {"a": [100, 101, 100]}
    sides = [[side(capture(spent)) for spent in spents] for spents in ((slow, fast, fast), (fast, slow, slow))]
    found = compare_captures(sides[0], sides[1])
    assert found.captures == (3, 3)
    assert not any(change.certain for change in (found.total, *found.lines, *found.instructions))


def test_captures_of_one_distribution_are_called_different_in_one_of_twenty_lists_at_most() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        before, after = (
            average_captures(
                [
                    {str(row): Mean(float(ns), 0.0, 9.0) for row, ns in enumerate(random.lognormal(0, 0.2, 10))}
                    for _ in range(3)
                ]
            )
            for _ in "AB"
        )
        wrong += any(change.certain for change in rank_changes(before, after, None))
    assert wrong <= 31  # 20 expected; more is rarer than 1 in 100


def test_a_line_with_other_instructions_is_certain_with_one_capture_each_and_its_neighbour_is_not() -> None:
    found = compared(
        {"a": [100, 101, 100], "b": [50, 51, 50]},
        {"a": [140, 141, 140], "b": [60, 61, 60], "c": [30, 31, 30]},
        lines={"a": 1, "b": 2, "c": 2},
        fingerprint="g",
    )
    assert {change.name: change.certain for change in found.lines} == {"/me/train.py:1": False, "/me/train.py:2": True}
    assert any("one capture each" in warning for warning in found.warnings)


def test_a_program_that_only_the_later_captures_ran_is_one_program() -> None:
    later = [side(capture(STEADY, program="jit_eval", fingerprint="e")) for _ in range(2)]
    found = compare_captures([side(capture(STEADY)), side(capture(STEADY))], later)
    assert {change.name: change.before_ns for change in found.programs} == {
        "jit_step": pytest.approx(150.5),
        "jit_eval": None,
    }


def test_the_document_holds_every_change(tmp_path: Path, run_command: Run) -> None:
    a = folder(tmp_path / "a", capture(STEADY))
    b = folder(tmp_path / "b", capture({**STEADY, "b": [90, 91, 90, 89]}))
    found = json.loads(run_command("diff", a, b, "--json").stdout)
    assert found["lines"][0]["delta_ns"] == 40
    assert not found["lines"][0]["certain"]
    assert found["captures"] == [1, 1]
    assert "train.py:2" in run_command("diff", a, b).stdout


def test_the_page_of_a_diff_shows_lines_as_text_and_fetches_nothing(tmp_path: Path, run_command: Run) -> None:
    evil = "<script>alert(1)</script>"
    a = folder(tmp_path / "a", capture({"dot.1": [100 * MS] * 3, "add.1": [5 * MS, 6 * MS, 7 * MS]}))
    b = folder(tmp_path / "b", capture({"dot.1": [120 * MS] * 3, "add.1": [6 * MS, 5 * MS, 7 * MS], evil: [MS] * 3}))
    done = run_command("diff", a, b, "--html", tmp_path / "diff.html")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "diff.html") in done.stderr
    page = (tmp_path / "diff.html").read_text()
    assert "<b>+21.000 ms</b> (+19.8 %), 106.000 ms before, 127.000 ms after" in page
    assert evil not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page
    lines = page[page.index('aria-label="Lines"') : page.index('aria-label="Instructions"')]
    assert lines.index("train.py:2") < lines.index("train.py:1")  # the largest change first
    assert run_command("diff", a, b, "--html", tmp_path).returncode == 2


def test_the_page_of_two_captures_without_an_op_says_that_nothing_is_known(tmp_path: Path, run_command: Run) -> None:
    empty = [folder(tmp_path / name, tables()) for name in "ab"]
    assert run_command("diff", *empty, "--html", tmp_path / "diff.html").returncode == 0
    assert "Too few executions" in (tmp_path / "diff.html").read_text()
