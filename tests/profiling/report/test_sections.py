"""What the sections of a page show."""

import pytest

from nightjar_profiling.report.sections import memory_curve
from tests.profiling.tabled import tables


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
