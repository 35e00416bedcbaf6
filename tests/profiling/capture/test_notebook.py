"""Notebooks: the magic `%%profile`, and a capture that shows itself; once in a real kernel."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest

import nightjar_profiling
from nightjar_profiling import load
from nightjar_profiling.capture import notebook as magics
from nightjar_profiling.capture.notebook import parse_line, register_magic
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.opened import render_lines
from tests.profiling.builders import training_trace
from tests.profiling.conftest import Run

DEFINE = """import jax, jax.numpy as jnp
@jax.jit
def work(x):
    y = x @ x
    return jnp.tanh(y).sum()
"""
PROFILE = """%%profile --out made
for _ in range(3):
    work(jnp.ones((300, 300))).block_until_ready()
"""


def test_the_extension_adds_a_cell_magic() -> None:
    added: dict[str, str] = {}

    def register(function: object, *, magic_kind: str) -> None:
        added[getattr(function, "__name__", "")] = magic_kind

    nightjar_profiling.load_ipython_extension(SimpleNamespace(register_magic_function=register))
    assert added == {"profile": "cell"}
    assert register_magic.__module__ == "nightjar_profiling.capture.notebook"


def test_the_options_of_the_magic() -> None:
    options = parse_line("--out 'a b' --user-code my_models")
    assert (options.out, options.user_code) == (Path("a b"), ["my_models"])
    assert parse_line("").out == Path("capture")
    for wrong in ("--folder x", "--out", "'"):
        with pytest.raises(InputError, match="%%profile: "):
            parse_line(wrong)


def test_the_error_of_a_cell_makes_its_run_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    @contextmanager
    def listening(out: Path, **options: object) -> Iterator[Path]:
        try:
            yield out
        except ValueError as error:
            ended.append(str(error))
            raise

    monkeypatch.setattr(magics, "capture_steps", listening)
    result = SimpleNamespace(error_before_exec=None, error_in_exec=ValueError("broken"))
    assert magics.profile_cell(SimpleNamespace(run_cell=lambda cell: result), f"--out {tmp_path}", "") is None
    assert ended == ["broken"]


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


@pytest.mark.slow
def test_a_real_notebook_shows_the_lines_of_its_cells(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="no ipykernel: pip install nbclient ipykernel")
    cells = ["%load_ext nightjar_profiling", DEFINE, PROFILE]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": sys.executable}
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for output in notebook.cells[2].outputs if "text/html" in output.get("data", {})]
    assert len(outputs) == 1
    assert "<iframe" in outputs[0]["data"]["text/html"]
    hottest = load(tmp_path / "made").profile["hot_lines"][0]  # type: ignore[index]
    assert hottest["source"] == "y = x @ x"
    nbformat.write(notebook, tmp_path / "shown.ipynb")
