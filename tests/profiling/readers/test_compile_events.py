import json
from pathlib import Path

import pytest

from nightjar_profiling.analyses.compile_time import summarise_compile
from nightjar_profiling.analyses.warmup import find_steady_state
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.annotations.compile_events import read_compile_events
from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.profiling.builders import training_trace

SPANS = [
    ["jaxpr_trace_duration", "softmax", 7, 120, 30],  # as they end: the inner first
    ["jaxpr_trace_duration", "step", 7, 100, 100],
    ["jaxpr_to_mlir_module_duration", "jit(step)", 7, 210, 20],
    ["backend_compile_duration", "jit(step)", 7, 240, 400],
    ["backend_compile_duration", "other", 8, 130, 50],  # another thread
]


def write(folder: Path, spans: list[list[object]]) -> Path:
    path = folder / "t.compile.jsonl"
    path.write_text("\n".join(map(json.dumps, spans)))
    return path


def test_spans_of_a_thread_nest_and_their_phases_sum_to_what_one_waited(tmp_path: Path) -> None:
    write(tmp_path, SPANS)
    tables = make_tables(read_raw(training_trace().write(tmp_path)))
    found = {(row["name"], row["program"]): row for row in tables.compile.iter_rows(named=True)}
    outer, inner = found["trace to a jaxpr", "step"], found["trace to a jaxpr", "softmax"]
    assert (inner["parent_id"], outer["self_ns"], inner["self_ns"]) == (outer["range_id"], 70, 30)
    assert found["compile by XLA", "step"]["duration_ns"] == 400
    assert found["compile by XLA", "other"]["parent_id"] is None
    phases = dict(summarise_compile(tables).select("name", "wall_ns").iter_rows())
    assert phases == {"compile by XLA": 450, "trace to a jaxpr": 100, "lower to StableHLO": 20}
    assert find_steady_state(tables).height == tables.executions.height  # compiled before the trace: nothing is warm-up


def test_a_trace_without_them_has_no_compile_time(tmp_path: Path) -> None:
    assert make_tables(read_raw(training_trace().write(tmp_path))).compile.is_empty()


@pytest.mark.parametrize("damage", ["[1, 2", "[1, 2, 3]", "3", '["a", "b", "c", "d", "e"]'])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, SPANS)
    path.write_text(f"{path.read_text()}\n{damage}")
    with pytest.raises(InputError, match=r"t\.compile\.jsonl: not a valid file of compile times"):
        read_compile_events(path, 0)
