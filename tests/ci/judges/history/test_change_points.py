"""Where a change is looked for: in every series that has enough nights on either side."""

from __future__ import annotations

import numpy as np
import pytest

from nightjar_ci.judges.history.change_points import LEAST, find_changes

Z = 3.0  # two times eight nights, all of the one above all of the other, are at 3.36


@pytest.mark.parametrize(("before", "after", "indices"), [(LEAST, LEAST, [LEAST]), (LEAST - 1, LEAST, [])])
def test_a_change_has_eight_nights_on_either_side(before: int, after: int, indices: list[int]) -> None:
    values = np.random.default_rng(0).normal(0, 0.01, before + after)
    values[before:] += 1
    assert [change.index for change in find_changes(values, Z)] == indices
