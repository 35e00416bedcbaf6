"""A thousand ops that last less than two microseconds on average: recording them told on the program."""

import pytest

from nightjar_profiling.pipeline.ingest import find_overhead
from tests.profiling.tabled import op, tables


@pytest.mark.parametrize(
    ("number", "mean_ns", "backend", "warned"),
    [
        (999, 1999, "jax", False),
        (1000, 1999, "jax", True),
        (1001, 1999, "jax", True),
        (1000, 2000, "jax", False),
        (1000, 1999, "nsys", False),
    ],
)
def test_many_short_ops_are_a_warning(number: int, mean_ns: int, backend: str, warned: bool) -> None:
    ops = [op("add.1", 3000 * place, mean_ns, kind="thunk") for place in range(number)]
    said = find_overhead(tables(ops=[*ops, op("fusion.1", 0, 9_000_000, kind="kernel")]), backend)
    assert [text.split(":")[0] for text in said] == [f"The {number:,} ops last 2.00 µs on average"] * warned
