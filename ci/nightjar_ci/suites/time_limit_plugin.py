"""The plugin of pytest that ends a suite in time. It is copied into a job's folder, and imports pytest only.

In: the variable `NIGHTJAR_LIMIT_S`. Out: the suite in another order, each test function once before the further
parameters of any, so that the tests that fit cover every part; after the limit, every test is skipped with the reason.
A worker of pytest-xdist has the order of all and its own clock.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest

_BEGIN = time.monotonic()  # importing the test files counts toward the limit
_VARIANT = re.compile(r"\[.*\]$|__\w+$|\d+$")  # of pytest, of chex, of absl


def find_round(occurrences: int) -> int:
    """The round in which a variant of a test runs: the first in round 0, two more in round 1, four more in round 2.

    >>> [find_round(number) for number in range(8)]
    [0, 1, 1, 2, 2, 2, 2, 3]
    """
    return (occurrences + 1).bit_length() - 1


def sort_by_round(node_ids: list[str]) -> list[int]:
    """The order in which tests run: indices.

    >>> sort_by_round(["a.py::t[1]", "a.py::t[2]", "a.py::t[3]", "a.py::t[4]", "b.py::t0", "b.py::t1"])
    [0, 4, 1, 2, 5, 3]
    """
    occurrences: dict[str, int] = {}
    rounds = []
    for node_id in node_ids:
        function = _VARIANT.sub("", node_id)
        occurrences[function] = occurrences.get(function, -1) + 1
        rounds.append(find_round(occurrences[function]))
    return sorted(range(len(node_ids)), key=lambda index: rounds[index])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    items[:] = [items[index] for index in sort_by_round([item.nodeid for item in items])]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    limit_s = float(os.environ["NIGHTJAR_LIMIT_S"])
    if time.monotonic() - _BEGIN > limit_s:
        pytest.skip(f"not run within {limit_s:g} s")  # as `formats.suite.CUT` reads it
