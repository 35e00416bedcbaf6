"""A capture that shows itself in a notebook."""

import re
from html import unescape
from pathlib import Path

import pytest

from nightjar_profiling import load
from nightjar_profiling.pipeline.opened import render_lines
from tests.profiling.builders import training_trace
from tests.profiling.conftest import Run


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
