"""The machines of the bench: recorded ones replay what was measured, in its order."""

import numpy as np
import pytest

from tests.bench.bisect.clocks import CHANGE, MACHINES, RECORDED, read_recording, replay, start_clock


@pytest.mark.parametrize("machine", RECORDED)
def test_a_recording_has_two_builds_that_differ_by_about_what_was_planted(machine: str) -> None:
    rows = read_recording()[machine]
    assert rows.shape == (300, 2)
    assert np.median(np.log(rows[:, 1] / rows[:, 0])) == pytest.approx(np.log(1 + CHANGE), abs=0.05)


def test_a_replay_keeps_rows_in_their_order_but_for_jumps() -> None:
    machine = "recorded, load comes and goes"
    rows = [tuple(row) for row in read_recording()[machine]]
    clock = replay(machine, np.random.default_rng(1))
    at = [rows.index(next(clock)) for _ in range(400)]
    steps = np.diff(at) % len(rows)
    assert 1 <= np.sum(steps != 1) <= 30  # ten jumps are expected


@pytest.mark.parametrize("machine", MACHINES)
def test_a_seed_gives_the_same_machine_again(machine: str) -> None:
    first, second = (start_clock(machine, np.random.default_rng(3)) for _ in range(2))
    runs = [next(first) for _ in range(50)]
    assert runs == [next(second) for _ in range(50)]
    assert all(before > 0 and after > 0 for before, after in runs)
