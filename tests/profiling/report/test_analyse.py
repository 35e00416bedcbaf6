from pathlib import Path

import plotly.graph_objects as go
import pytest

from nightjar_profiling.analyses.stacks import StackFrame, read_stacks, user_line
from nightjar_profiling.capture_folder.tables import Tables, read_tables, write_tables
from nightjar_profiling.capture_folder.usercode import user_code_test
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.xplane.xplane import read_raw
from nightjar_profiling.report import analyse
from nightjar_profiling.report.flamegraph import build_tree, render_figure, visible
from tests.places import ROOT
from tests.profiling.builders import Hlo, TraceBuilder, hlo_proto, training_trace


def tables_of(builder: TraceBuilder, folder: Path) -> Tables:
    return make_tables(read_raw(builder.write(folder)))


def profile_of(tables: Tables, *patterns: str) -> analyse.Profile:
    time = analyse.sum_device_time(tables)
    stack_of = read_stacks(tables, user_code_test(patterns))
    lines = analyse.find_hot_lines(time, stack_of, lambda file, line: f"line {line}")
    about = analyse.divide_time(time, stack_of) | {"hot_lines": tuple(lines)}
    return analyse.Profile(backend="jax", command=("train",), steps=(1, 2), flamegraph=None, warnings=(), **about)


def test_the_documented_example_a_step_of_100_ns(tmp_path: Path) -> None:
    profile = profile_of(tables_of(training_trace(), tmp_path))
    assert profile.device_time_ns == 100
    assert (profile.direct_fraction, profile.inferred_fraction) == (0.92, 0.08)
    assert (profile.unattributed_fraction, profile.user_fraction) == (0.0, 1.0)
    assert profile.categories == {"matrix product": 60, "fusion": 30, "data movement": 8, "elementwise": 2}
    (line,) = profile.hot_lines
    assert (line.file, line.line, line.function, line.self_ns) == ("/home/me/train.py", 4, "loss", 100)
    assert line.source == "line 4"


def test_further_user_code_moves_the_user_line_inward(tmp_path: Path) -> None:
    profile = profile_of(tables_of(training_trace(), tmp_path), "flax")
    assert [(line.function, line.self_ns) for line in profile.hot_lines] == [("Linear.__call__", 98), ("loss", 2)]


def test_time_belongs_to_user_code_library_code_or_neither(tmp_path: Path) -> None:
    library = Hlo("dot.1", frame=5)  # a stack of its own, of which no line is the user's
    proto = hlo_proto({"entry": [library, Hlo("add.1", frame=2), Hlo("copy.1")]})
    index = proto.hlo_module.stack_frame_index
    index.stack_frames.add(file_location_id=3)
    trace = TraceBuilder().hlo(7, proto).thunk("dot.1", 0, 50).thunk("add.1", 50, 20).thunk("copy.1", 70, 30)
    profile = profile_of(tables_of(trace, tmp_path))
    assert (profile.user_fraction, profile.library_fraction, profile.unattributed_fraction) == (0.2, 0.5, 0.3)
    assert profile_of(tables_of(trace, tmp_path), "flax").library_fraction == 0.0


def test_without_hlo_everything_is_unattributed(tmp_path: Path) -> None:
    profile = profile_of(tables_of(TraceBuilder().thunk("dot.1", 0, 60), tmp_path))
    assert (profile.direct_fraction, profile.inferred_fraction, profile.user_fraction) == (0.0, 0.0, 0.0)
    assert profile.unattributed_fraction == 1.0
    assert profile.hot_lines == ()
    assert profile.categories == {"no instruction": 60}


def test_a_profile_names_all_documented_keys(tmp_path: Path) -> None:
    document = profile_of(tables_of(training_trace(), tmp_path)).document()
    page = (ROOT / "docs/reference/capture-folder.md").read_text()
    section = page.partition("## `profile.json`")[2]
    assert all(f"`{key}`" in section for key in document)
    assert document["schema"] == "nightjar.profile/1"


def test_a_stack_without_user_code_is_represented_by_its_innermost_line() -> None:
    outer = StackFrame(file="/usr/lib/python3.11/runpy.py", line=1, function="f", user=False)
    inner = StackFrame(file="/x/site-packages/lib.py", line=2, function="g", user=False)
    assert user_line((outer, inner)) == inner
    assert visible((outer, inner)) == (outer, inner)


def test_the_flame_graph_shows_user_frames_and_the_library_below_them(tmp_path: Path) -> None:
    tables = tables_of(training_trace(), tmp_path)
    root = build_tree(analyse.sum_device_time(tables), read_stacks(tables, user_code_test()))
    (main,) = root.children.values()
    (loss,) = main.children.values()
    (linear,) = loss.children.values()
    assert (main.label, main.total_ns) == ("main  train.py:9", 100)
    assert (loss.label, loss.total_ns) == ("loss  train.py:4", 100)
    assert (linear.label, linear.total_ns) == ("Linear.__call__  linear.py:422", 98)


def test_the_figure_is_one_that_plotly_accepts(tmp_path: Path) -> None:
    tables = tables_of(training_trace(), tmp_path)
    root = build_tree(analyse.sum_device_time(tables), read_stacks(tables, user_code_test()))
    figure = go.Figure(render_figure(root))
    assert figure.data[0].values[0] == 100
    assert set(figure.data[0].parents[1:]) <= set(figure.data[0].ids)


def test_tables_come_back_as_they_were_written(tmp_path: Path) -> None:
    tables = tables_of(training_trace(), tmp_path)
    write_tables(tmp_path / "tables", tables)
    assert read_tables(tmp_path / "tables").ops.equals(tables.ops)
    whole = (tmp_path / "tables" / "ops.parquet").read_bytes()
    (tmp_path / "tables" / "ops.parquet").write_bytes(whole[:50])
    with pytest.raises(InputError, match=r"ops\.parquet: cannot be read"):
        read_tables(tmp_path / "tables")
