"""A capture in Python: its tables, and its page in a notebook."""

import re
from html import unescape
from pathlib import Path

import polars as pl
import pytest

import nightjar_profiling
from nightjar_profiling import load
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.opened import open_capture, render_lines
from tests.profiling.builders import training_trace
from tests.profiling.conftest import Run
from tests.profiling.pipeline.test_merge import capture_of


def test_a_capture_opens_as_lazy_tables_with_its_manifest_and_profile(tmp_path: Path) -> None:
    capture = open_capture(capture_of(training_trace(), tmp_path / "capture"))
    hottest = capture.ops.group_by("instruction").agg(pl.col("duration_ns").sum()).sort("duration_ns").last().collect()
    assert hottest.rows() == [("dot.1", 60)]
    assert capture.manifest is not None
    assert capture.manifest.command == ("train",)
    assert capture.profile is not None
    assert capture.profile["device_time_ns"] == 100


def test_load_is_the_function_whichever_reader_was_imported(tmp_path: Path) -> None:
    path = training_trace().write(tmp_path)
    from nightjar_profiling.readers.xplane.xplane import read_raw

    assert nightjar_profiling.load(path).read().device_time_ns == read_raw(path).tables["ops"]["duration_ns"].sum()


def test_a_raw_trace_opens_without_a_folder(tmp_path: Path) -> None:
    capture = open_capture(str(training_trace().write(tmp_path)))
    assert capture.read().device_time_ns == 100
    assert capture.attribution.collect().height == 4
    assert capture.manifest is None
    assert list(tmp_path.iterdir()) == [tmp_path / "t.xplane.pb"]


def test_an_unknown_table_is_named(tmp_path: Path) -> None:
    capture = open_capture(training_trace().write(tmp_path))
    with pytest.raises(AttributeError, match="no table 'traces': expected one of programs"):
        _ = capture.traces


def test_a_path_that_is_not_a_capture_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none"):
        open_capture(tmp_path / "none")


def test_a_raw_trace_says_how_to_make_its_page_and_a_large_page_is_a_table(tmp_path: Path) -> None:
    trace = training_trace().write(tmp_path, "host.xplane.pb")
    assert f"nightjar-profiling report {trace}" in load(trace)._repr_html_()
    line = {"self_ns": 2_000_000, "fraction": 0.5, "file": "/a/<b>.py", "line": 3, "source": "x < y"}
    table = render_lines({"hot_lines": [line]})
    assert "2.000" in table
    assert "&lt;b&gt;.py:3" in table
    assert "x &lt; y" in table


@pytest.mark.slow
def test_a_capture_shows_its_page_inside_a_frame_that_cannot_reach_out(tmp_path: Path, run_command: Run) -> None:
    trace = training_trace().write(tmp_path, "host.xplane.pb")
    assert run_command("report", trace, "--out", "a").returncode == 0
    shown = load(tmp_path / "a")._repr_html_()
    assert 'sandbox="allow-scripts"' in shown
    page = re.search(r'srcdoc="([^"]*)"', shown)
    assert page is not None
    assert unescape(page[1]) == (tmp_path / "a" / "report.html").read_text()
