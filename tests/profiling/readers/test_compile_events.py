import json
from pathlib import Path

import pytest

from nightjar_profiling.analyses.compile_time import summarise_compile
from nightjar_profiling.analyses.recompiled import MADE_AGAIN, find_recompiled, list_callers
from nightjar_profiling.analyses.warmup import find_steady_state
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.annotations.compile_ranges import read_compile_events
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


def test_a_function_that_is_compiled_again_has_its_line_and_its_reason(tmp_path: Path) -> None:
    def compiled(name: str, start_ns: int, at: str) -> list[object]:
        return ["backend_compile_duration", name, 7, start_ns, 10, at]

    write(
        tmp_path,
        [
            *(compiled("jit(step)", 100 * turn, "/a/train.py:12") for turn in range(3)),
            ["jaxpr_trace_duration", "<lambda>", 7, 900, 40, "/a/train.py:20"],
            *(compiled("jit(<lambda>)", 1000 + 100 * turn, "/a/train.py:20") for turn in range(2)),
            compiled("jit(once)", 2000, "/a/train.py:30"),
            *(["backend_compile_duration", "jit(old)", 7, 3000 + turn, 1] for turn in range(2)),  # no line is known
        ],
    )
    tables = make_tables(read_raw(training_trace().write(tmp_path)))
    assert list(find_recompiled(tables).drop("because").iter_rows()) == [
        ("lambda", "train.py:20", 2, 60),
        ("step", "train.py:12", 3, 30),
    ]
    assert list_callers(tables.compile, "step") == " at train.py:12"
    assert find_recompiled(tables)["because"][0] == MADE_AGAIN
    write(tmp_path, [compiled("jit(step)", 100 * turn, f"/a/train.py:{90 - turn}") for turn in range(9)])
    tables = make_tables(read_raw(training_trace().write(tmp_path)))
    assert list_callers(tables.compile, "step") == " at train.py:90, train.py:89, train.py:88"


def test_a_trace_without_them_has_no_compile_time(tmp_path: Path) -> None:
    assert make_tables(read_raw(training_trace().write(tmp_path))).compile.is_empty()


@pytest.mark.parametrize("damage", ["[1, 2", "[1, 2, 3]", "3", '["a", "b", "c", "d", "e"]'])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, SPANS)
    path.write_text(f"{path.read_text()}\n{damage}")
    with pytest.raises(InputError, match=r"t\.compile\.jsonl: not a valid file of compile times"):
        read_compile_events(path, 0)
