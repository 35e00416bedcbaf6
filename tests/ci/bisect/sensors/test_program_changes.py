"""Where on a ladder the programs change, by halving."""

import math

from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.bisect.sensors.program_changes import SHARE_OF_CHANGES, find_program_changes, weigh_culprits


@given(st.data())
def test_one_change_is_found_in_as_few_runs_as_halving_takes(data: st.DataObject) -> None:
    n_rungs = data.draw(st.integers(2, 300))
    culprit = data.draw(st.integers(1, n_rungs - 1))
    changes = find_program_changes(n_rungs, lambda rung: "new" if rung >= culprit else "old")
    assert changes is not None
    assert changes.exact == (culprit - 1, culprit)
    assert len(changes.digests) <= 2 + math.ceil(math.log2(n_rungs))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_everywhere_every_range_that_is_named_is_of_two_neighbours_that_differ(
    levels: list[int],
) -> None:
    changes = find_program_changes(len(levels), lambda rung: str(levels[rung]), everywhere=True)
    assert changes is not None
    assert all(levels[low] != levels[high] for low, high in changes.ranges)
    assert (levels[0] == levels[-1]) or changes.ranges
    assert all(high == low + 1 for low, high in changes.ranges)


def test_rungs_that_cannot_be_run_are_stepped_over() -> None:
    def sense(rung: int) -> str | None:
        return None if rung in (4, 5) else str(rung >= 5)

    changes = find_program_changes(9, sense)
    assert changes is not None
    assert changes.exact == (3, 6)


def test_a_test_without_programs_tells_nothing() -> None:
    assert find_program_changes(9, lambda rung: None) is None
    assert find_program_changes(9, lambda rung: "p" if rung else None) is None


def test_two_changes_end_the_halving_unless_all_are_wanted() -> None:
    ran = []

    def sense(rung: int) -> str:
        ran.append(rung)
        return "a" if rung < 10 else "b" if rung < 90 else "c"

    few = find_program_changes(100, sense)
    assert few is not None
    assert few.exact is None
    assert len(ran) == 3
    every = find_program_changes(100, sense, everywhere=True)
    assert every is not None
    assert every.ranges == ((9, 10), (89, 90))


def test_the_prior_looks_where_programs_change_and_seldom_at_an_equal_runtime() -> None:
    changes = find_program_changes(5, lambda rung: str(rung >= 3))
    assert changes is not None
    weights = weigh_culprits(5, changes, {1})
    assert math.isclose(sum(weights), 1)
    assert math.isclose(weights[2], SHARE_OF_CHANGES)
    assert math.isclose(weights[0] * 10, weights[1])
    nothing = find_program_changes(5, lambda rung: "same")
    assert nothing is not None
    assert weigh_culprits(5, nothing, ()) == [0.25] * 4
