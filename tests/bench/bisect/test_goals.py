"""The goals of the bench: a part that measures nothing leaves its goals as not measured."""

import pytest

from tests.bench.bisect import plants
from tests.bench.bisect.real import regressions
from tests.bench.table import print_tables


def test_plants_that_were_not_measured_are_a_goal_that_was_not_reached(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = print_tables(plants.list_goals(), [])
    assert (row.name, row.is_goal, row.reached) == (plants.GOAL, True, False)
    assert "not measured" in capsys.readouterr().out


def test_every_regression_has_goals_on_a_quiet_machine_and_on_a_busy_one() -> None:
    goals = regressions.list_goals()
    assert len({regression.issue for regression in regressions.REGRESSIONS}) == 12
    assert [len(names) for names in goals.values()] == [12, 12, 24]
    assert all(regression.test.is_file() for regression in regressions.REGRESSIONS)
