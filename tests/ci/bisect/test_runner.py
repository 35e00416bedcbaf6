"""What a test of a rung took, from which the cost of the next ones is estimated."""

import pytest

from nightjar_ci.bisect.probing.runner import split_time


@pytest.mark.parametrize(
    ("took_s", "tested_s", "builds", "times"),
    [
        (10.0, 4.0, 1, (6.0, 4.0)),
        (10.0, 4.0, 0, (0.0, 10.0)),  # nothing was built: what starting the test took belongs to it
        (4.0, 5.0, 1, (0.0, 5.0)),  # two clocks
    ],
)
def test_what_is_not_the_test_is_the_build_where_there_was_one(
    took_s: float, tested_s: float, builds: int, times: tuple[float, float]
) -> None:
    assert split_time(took_s, tested_s, builds) == times
