"""Where a change is looked for: in every series that has enough nights on either side."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from nightjar_ci.judges.history.change_points import LEAST, find_changes

Z = 3.0  # two times eight nights, all of the one above all of the other, are at 3.36


@pytest.mark.parametrize(("before", "after", "indices"), [(LEAST, LEAST, [LEAST]), (LEAST - 1, LEAST, [])])
def test_a_change_has_eight_nights_on_either_side(before: int, after: int, indices: list[int]) -> None:
    values = np.random.default_rng(0).normal(0, 0.01, before + after)
    values[before:] += 1
    assert [change.index for change in find_changes(values, Z)] == indices


STEADY = np.tile([1e-3, 0.0], LEAST // 2)  # neighbours that do not resemble each other
TIED = np.where(np.arange(LEAST) == 2, 1.0, STEADY)  # one night had the later level before
ALIKE = np.array([0.0, 1e-3, 1e-3, 0.0] * (LEAST // 4))  # every second night is as the one before


def p_of(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> float:
    """The p of the only change, the same whether the series rises or falls."""
    values = np.concatenate([before, after])
    (rise,), (fall,) = find_changes(values, Z), find_changes(-values, Z)
    assert rise.p == pytest.approx(fall.p)
    return rise.p


def test_the_p_of_a_large_change_is_that_of_its_ranks() -> None:
    assert p_of(STEADY, STEADY + 1) == pytest.approx(2 / math.comb(2 * LEAST, LEAST))


@pytest.mark.parametrize(
    ("before", "after"),
    [(TIED, STEADY + 1), (ALIKE, ALIKE + 1)],
    ids=["a night before had the later level", "neighbours resemble each other"],
)
def test_what_speaks_against_a_large_change_makes_it_less_rare(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
) -> None:
    assert p_of(before, after) > 3 * p_of(STEADY, STEADY + 1)
