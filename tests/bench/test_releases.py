"""The clock of comparing two releases has a goal where all was compiled in one session, else it says what was there."""

from __future__ import annotations

from pathlib import Path

from tests.bench.aot.releases import CLOCK_S, NEW, OLD, count_kept, render_clock


def test_a_session_from_the_start_must_end_within_twenty_minutes() -> None:
    assert CLOCK_S == 20 * 60
    assert render_clock(1200, 0, 38).reached
    assert not render_clock(1201, 0, 38).reached


def test_a_session_that_goes_on_says_what_was_there_and_reaches_no_goal(tmp_path: Path) -> None:
    for release, preset in ((OLD, "a"), (NEW, "a"), (NEW, "c")):
        (tmp_path / release / preset).mkdir(parents=True)
        (tmp_path / release / preset / "cpu_s").write_text("1.0")
    assert count_kept(["a", "b"], tmp_path) == 2
    row = render_clock(5, 2, 4)
    assert row.goal is None
    assert "2 of 4 programs were there" in row.name
