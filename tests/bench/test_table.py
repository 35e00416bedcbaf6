"""A bench that misses a goal, or measured none, ends with 1 and says which."""

from __future__ import annotations

import math

import pytest

from tests.bench.table import Row, finish, print_rows

FAST = Row(name="time of one night", ours=1.0, goal=2.0, unit="s", rival="Otava", rival_value=10.0)
WEAK = Row(name="power", ours=0.5, goal=0.9, better="higher", rival="asv", rival_value=0.25)


def test_a_missed_goal_ends_with_1_and_is_named_in_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("bench_gate", [FAST, WEAK]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "bench_gate: 1 of 2 goals reached; missed: power"


def test_all_goals_reached_ends_with_0_and_none_measured_with_1() -> None:
    assert finish("bench_gate", [FAST]) == 0
    assert finish("bench_gate", [Row(name="only informs", ours=1.0)]) == 1


def test_the_table_shows_goal_ours_rival_and_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows("Gate", [FAST, WEAK])
    shown = capsys.readouterr().out
    for text in ("<= 2 s", "Otava", "10 s", "10x", ">= 0.9", "0.5 MISSED", "2x"):
        assert text in shown


def test_a_rival_without_an_answer_has_no_ratio_and_one_by_zero_is_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Row(name="x", ours=1.0, rival="old", rival_value=math.nan)
    print_rows("Gate", [silent])
    assert silent.ratio is None
    assert "no answer" in (shown := capsys.readouterr().out)
    assert "nan" not in shown
    assert Row(name="x", ours=0.0, rival="old", rival_value=3.0).ratio == math.inf
    assert Row(name="x", ours=0.0, rival="old", rival_value=0.0).ratio == 1.0
