"""The tables of the page that compares two captures."""

import pytest

from nightjar_profiling.analyses.compare.change import Change
from nightjar_profiling.report.difference import MOST_ROWS, table_data
from nightjar_profiling.report.sections import memory_curve
from tests.profiling.tabled import tables


def change(before: float | None, after: float | None, name: str = "dot.1") -> Change:
    return Change(name=name, before_ns=before, after_ns=after, low_ns=None, high_ns=None)


@pytest.mark.parametrize(
    ("before", "after", "delta", "unit", "percent"),
    [
        (1e9, 2.5e9, "+1.500", "s", "+150.0 %"),
        (999e6, 1e6, "-998.000", "ms", "-99.9 %"),
        (1e6, None, "-1.000", "ms", "vanished"),
        (None, 1.5e3, "+1.500", "µs", "appeared"),
        (2.0, 3.0, "+1.000", "ns", "+50.0 %"),
        (0.0, 0.5, "+0.500", "ns", "new"),
    ],
)
def test_the_unit_of_a_table_is_the_largest_that_its_largest_time_fills(
    before: float | None, after: float | None, delta: str, unit: str, percent: str
) -> None:
    table = table_data("Lines", [change(before, after)])
    (row,) = table["rows"]
    assert (row["delta"], table["unit"], row["unit"], row["percent"]) == (delta, unit, unit, percent)
    assert row["slower"] == delta.startswith("+")


def test_a_table_shows_what_changed_by_bars_relative_to_the_first_and_counts_what_it_leaves_out() -> None:
    same, changed = change(5.0, 5.0), [change(0.0, 200.0 - number) for number in range(MOST_ROWS + 3)]
    table = table_data("Lines", [*changed, same])
    assert (len(table["rows"]), table["left"]) == (MOST_ROWS, 3)
    assert [row["width"] for row in table["rows"][:2]] == [100.0, 99.5]
    assert table_data("Lines", [same]) == {"title": "Lines", "unit": "ns", "rows": [], "left": 0}


@pytest.mark.parametrize(("name", "shown"), [("jit_f", "jit_f"), ("", "the program")])
def test_the_curve_of_memory_is_that_of_the_program_that_needs_most(name: str, shown: str) -> None:
    programs = [{"program_id": 1, "name": name}, {"program_id": 2, "name": "jit_small"}]
    buffers = [
        {"program_id": 1, "instruction": "p", "kind": "parameter", "size_bytes": 1000},
        {"program_id": 1, "instruction": "a", "kind": "temp", "size_bytes": 70},  # 10 of them are in no moment
        {"program_id": 2, "instruction": "p", "kind": "parameter", "size_bytes": 10},
    ]
    moments = [
        {"program_id": 1, "position": at, "instruction": instruction, "live_bytes": live}
        for at, (instruction, live) in enumerate([("a", 20), ("b", 60)])
    ]
    moments += [{"program_id": 2, "position": at, "instruction": "z", "live_bytes": 900} for at in range(2)]
    curve = memory_curve(tables(programs=programs, buffers=buffers, memory_over_time=moments), {(1, "b"): 5})
    assert curve == {
        "program": shown,
        "bytes": [1030, 1070],
        "always_bytes": 1010,
        "peak_instruction": "b",
        "peak_frame": 5,
    }


def test_a_program_of_one_moment_has_no_curve() -> None:
    programs = [{"program_id": 1, "name": "jit_f"}]
    buffers = [{"program_id": 1, "instruction": "a", "kind": "temp", "size_bytes": 70}]
    moments = [{"program_id": 1, "position": 0, "instruction": "a", "live_bytes": 70}]
    assert memory_curve(tables(programs=programs, buffers=buffers, memory_over_time=moments), {}) is None
