import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.attribution.apportion import apportion_time
from nightjar_profiling.capture_folder.tables import Row
from tests.profiling.tabled import tables


def op(duration_ns: int, instruction: str | None = "a", device: int = 0) -> Row:
    known = {"program_id": None if instruction is None else 1, "instruction": instruction}
    return {"rank": 0, "device": device, "start_ns": 0, "duration_ns": duration_ns, "kernel": "k", **known}


def share(weight: float, frame_id: int | None = 1, instruction: str = "a") -> Row:
    how = "none" if frame_id is None else "called"
    weights = {"weight": weight, "root_weight": 1.0 if frame_id == 1 else 0.0}
    return {"program_id": 1, "instruction": instruction, "frame_id": frame_id, "how": how, **weights}


def test_an_instruction_is_split_by_weight() -> None:
    found = tables(ops=[op(10), op(5)], attribution=[share(0.25, 1), share(0.75, 2)])
    assert apportion_time(found).select("frame_id", "duration_ns", "count").rows() == [(1, 4, 2), (2, 11, 2)]
    assert apportion_time(found, fusion="root").select("frame_id", "duration_ns").rows() == [(1, 15)]


def test_what_has_no_instruction_or_no_attribution_is_a_row_without_a_stack() -> None:
    found = tables(ops=[op(10, None), op(7, "b")])
    rows = apportion_time(found, by=()).sort("duration_ns").select("frame_id", "how", "duration_ns").rows()
    assert rows == [(None, "none", 7), (None, "none", 10)]


@given(
    ops=st.lists(
        st.builds(op, st.integers(0, 2**50), st.sampled_from(["a", "b", "c", None]), st.integers(0, 2)), max_size=20
    ),
    weights=st.dictionaries(st.sampled_from("abc"), st.lists(st.floats(0, 1), min_size=1, max_size=6)),
)
def test_no_nanosecond_is_lost_or_made_whatever_the_weights(ops: list[Row], weights: dict[str, list[float]]) -> None:
    shares = [share(w, n, name) for name, found in weights.items() for n, w in enumerate(found)]
    whole = tables(ops=ops, attribution=shares)
    found = apportion_time(whole)
    assert found["duration_ns"].sum() == sum(one["duration_ns"] for one in ops)
    assert found.filter(pl.col("duration_ns") < 0).is_empty()
    per_device = whole.ops.group_by("device").agg(pl.col("duration_ns").sum())
    assert found.group_by("device").agg(pl.col("duration_ns").sum()).sort("device").equals(per_device.sort("device"))
