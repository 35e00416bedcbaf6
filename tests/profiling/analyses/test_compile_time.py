from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.analyses.compile_time import account_compile_time, fold_autotuning, summarise_compile
from nightjar_profiling.pipeline.ingest import find_overhead
from tests.profiling.tabled import op, tables


def compile_range(
    number: int, start_ns: int, duration_ns: int, parent: int | None = None, **more: Any
) -> dict[str, Any]:
    known = {"rank": 0, "thread": 1, "name": f"r{number}", "program": "jit_f"}
    return {**known, "range_id": number, "parent_id": parent, "start_ns": start_ns, "duration_ns": duration_ns, **more}


def wall(*rows: dict[str, Any]) -> dict[int, float]:
    found = account_compile_time(tables(compile=rows).compile)
    return dict(found.select("range_id", "wall_ns").iter_rows())


def test_compilations_of_the_autotuner_count_as_autotuning() -> None:
    rows = [
        compile_range(1, 0, 100, name="XlaCompile:#module=jit_f,program_id=3#"),
        compile_range(2, 0, 60, 1, name="XlaAutotunerCompilation"),
        compile_range(3, 0, 50, 2, name="XlaPass:#name=fusion,program_id=9#"),
        compile_range(4, 5, 10, 3, name="XlaEmitLlvmIr"),
        compile_range(5, 70, 10, 1, name="XlaPass:#name=fusion,program_id=3#"),
    ]
    assert fold_autotuning(tables(compile=rows).compile)["range_id"].to_list() == [1, 2, 5]
    found = summarise_compile(tables(compile=rows))
    assert found.select("name", "wall_ns", "fraction").rows() == [
        *[("XlaAutotunerCompilation", 60.0, 0.6), ("XlaCompile", 30.0, 0.3), ("XlaPass:#name=fusion#", 10.0, 0.1)]
    ]


def test_a_pass_of_two_programs_is_one_phase() -> None:
    rows = [compile_range(n, 100 * n, 10, name=f"XlaPass:#name=dce,program_id={n}#") for n in range(2)]
    assert summarise_compile(tables(compile=rows)).select("name", "count", "wall_ns").rows() == [
        ("XlaPass:#name=dce#", 2, 20.0)
    ]


@st.composite
def ranges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Nested ranges, on the parent's thread one after the other, on others at will."""
    rows = [compile_range(1, 0, draw(st.integers(50, 1000)))]
    for number in range(2, draw(st.integers(1, 12)) + 2):
        parent = draw(st.sampled_from(rows))
        thread = draw(st.sampled_from([parent["thread"], number]))
        end = parent["start_ns"] + parent["duration_ns"]
        mine = [one for one in rows if one["parent_id"] == parent["range_id"]]
        after = max((one["start_ns"] + one["duration_ns"] for one in mine if thread == parent["thread"]), default=0)
        start = draw(st.integers(min(max(after, parent["start_ns"]), end), end))
        rows.append(compile_range(number, start, draw(st.integers(0, end - start)), parent["range_id"], thread=thread))
    return rows


@given(ranges())
def test_wall_time_never_exceeds_the_time_waited(rows: list[dict[str, Any]]) -> None:
    found = wall(*rows)
    assert sum(found.values()) == pytest.approx(rows[0]["duration_ns"], rel=1e-9)


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
