"""The part of a batch of sixteen that the devices of a process hold."""

from types import SimpleNamespace
from typing import Any

import pytest

from nightjar_models.parallel.sharding import find_share

PARTS = {((None, None),): (0, 1), ((8, 16),): (1, 2), ((4, 8), (0, 4)): (0, 2), ((12, 16), (12, 16)): (3, 4)}
WHOLE = dict.fromkeys([((0, 4), (8, 12)), ((2, 6),), ((0, 6),)], (0, 1))  # apart, between parts, no equal part


@pytest.mark.parametrize(("rows", "share"), [*PARTS.items(), *WHOLE.items()])
def test_a_process_takes_its_equal_part_of_a_batch_or_the_whole(rows: Any, share: tuple[int, int]) -> None:
    held = {number: (slice(*row), slice(None)) for number, row in enumerate(rows)}
    sharding: Any = SimpleNamespace(addressable_devices_indices_map=lambda shape: held if shape == (16,) else None)
    assert find_share(sharding, 16) == share
