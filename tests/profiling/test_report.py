from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nightjar_profiling.ingest import ingest
from nightjar_profiling.manifest import read_manifest, write_manifest
from nightjar_profiling.report import duration, embed_json, percent, title_of
from tests.profiling.builders import TraceBuilder, training_trace
from tests.profiling.conftest import Run
from tests.profiling.test_manifest import MANIFEST

SOURCE = "import jax\n\n\nloss = f(x) < y </script><b>bold</b>\n"


def make_capture(folder: Path, trace: TraceBuilder) -> Path:
    """A capture folder, made from a trace, with the source that its stacks name."""
    trace.write(folder / "raw", "rank0000.xplane.pb")
    source = folder / "sources" / "home" / "me" / "train.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    write_manifest(folder, MANIFEST)
    ingest(folder, read_manifest(folder), copy_sources=False)
    return folder


class Elements(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_report_is_one_page_that_fetches_nothing(tmp_path: Path) -> None:
    elements = Elements()
    elements.feed((make_capture(tmp_path, training_trace()) / "report.html").read_text())
    tags = {tag for tag, _ in elements.found}
    assert {"table", "script", "style"} <= tags
    assert tags.isdisjoint({"link", "img", "iframe"})
    assert [attributes for _, attributes in elements.found if "src" in attributes or "href" in attributes] == []


def test_a_hot_line_is_shown_with_its_source_escaped(tmp_path: Path) -> None:
    page = (make_capture(tmp_path, training_trace()) / "report.html").read_text()
    assert "<code>loss = f(x) &lt; y &lt;/script&gt;&lt;b&gt;bold&lt;/b&gt;</code>" in page
    assert 'title="/home/me/train.py:4"' in page


def test_a_trace_without_hlo_makes_a_report_that_says_so(tmp_path: Path) -> None:
    page = (make_capture(tmp_path, TraceBuilder().thunk("dot.1", 0, 60)) / "report.html").read_text()
    assert "no HLO for 1 of the programs" in page
    assert "No time is attributed to a line." in page


def test_report_makes_a_capture_anew_with_other_user_code(run_command: Run, tmp_path: Path) -> None:
    folder = make_capture(tmp_path / "c", training_trace())
    (folder / "report.html").unlink()
    done = run_command("report", "c", "--user-code", "flax.*")
    assert done.stdout == f"{folder / 'report.html'}\n"
    assert "linear.py:422" in run_command("summary", "c").stdout


def test_report_adopts_a_raw_trace(run_command: Run, tmp_path: Path) -> None:
    training_trace().write(tmp_path)
    done = run_command("report", "t.xplane.pb", "--out", "made")
    assert done.returncode == 0
    assert (tmp_path / "made" / "raw" / "rank0000.xplane.pb").is_file()
    assert "may differ from what ran" in done.stderr


def test_summary_prints_the_shares_and_the_lines(run_command: Run, tmp_path: Path) -> None:
    make_capture(tmp_path / "capture", training_trace())
    lines = run_command("summary").stdout.splitlines()
    assert lines[0].startswith("0.000 ms of device time in steps 1 to 2: 100.0% in your code, 92.0% direct, 8.0% inf")
    assert lines[2].split()[:3] == ["0.000", "100.0%", "train.py:4"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("report", "none"), 2, "none: no such file or folder"),
        (("report", "empty"), 2, "manifest.json: no such file"),
        (("report", "bare"), 2, "no raw trace"),
        (("report", "bad.xplane.pb", "--out", "new"), 2, "bad.xplane.pb: holds no plane"),
        (("report", "bare", "--out", "x"), 2, "--out: only for a raw trace"),
        (("report", "no_hlo"), 4, "No device time could be attributed"),
        (("report", "no_ops"), 4, "nothing ran on a device"),
        (("summary", "empty"), 2, "profile.json: no such file"),
        (("capture", "--out", "thesis", "--", "true"), 2, "not empty, and not a capture"),
        (("capture", "--steps", "5:3", "--", "true"), 2, "the last step is before the first"),
    ],
)
def test_bad_input_gets_a_message_and_an_exit_code(
    run_command: Run, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    for name in ("empty", "bare", "no_hlo", "no_ops", "thesis"):
        (tmp_path / name).mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("precious")
    (tmp_path / "bad.xplane.pb").write_bytes(b"")
    for name in ("bare", "no_hlo", "no_ops"):
        write_manifest(tmp_path / name, MANIFEST)
    TraceBuilder().thunk("dot.1", 0, 60).write(tmp_path / "no_hlo" / "raw")
    TraceBuilder().event("/host:CPU", "python", "idle", 0, 5).write(tmp_path / "no_ops" / "raw")
    done = run_command(*arguments)
    assert done.returncode == exit_code
    assert message in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "thesis").iterdir()) == ["thesis.txt"]


def test_debug_prints_the_traceback(run_command: Run) -> None:
    assert "Traceback" in run_command("--debug", "report", "none").stderr


@pytest.mark.parametrize("arguments", [(), ("capture",), ("report",), ("summary",)])
def test_help_ends_with_an_example(run_command: Run, arguments: tuple[str, ...]) -> None:
    done = run_command(*arguments, "--help")
    assert done.returncode == 0
    assert "Example: nightjar-profiling" in re.sub(r"\s+", " ", done.stdout)


def test_formats() -> None:
    assert percent(0.9996) == ">99.9 %"
    assert percent(0.0) == "0.0 %"
    assert duration(1_500) == "1.500 µs"
    assert title_of(("/venv/bin/python3", "-m", "pkg.train", "--lr", "1")) == "pkg.train --lr 1"
    assert "</script>" not in embed_json({"a": "</script>"})


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on PATH")
def test_a_browser_draws_the_flame_graph_and_the_hot_lines(tmp_path: Path) -> None:
    page = make_capture(tmp_path / "c", training_trace()) / "report.html"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
    options += ["--disable-background-networking", "--disable-component-update", "--virtual-time-budget=8000"]
    command = ["chromium", *options, f"--user-data-dir={tmp_path / 'chromium'}", "--dump-dom", page.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    body = drawn.partition('id="flame-graph"')[2].partition("<h2>Categories")[0]
    assert len(re.findall(r'<g class="slice[ "]', body)) == 4
    assert "Linear.__call__" in body
    lines = drawn.partition('id="hot-lines"')[2].partition("</table>")[0]
    assert "train.py:4" in lines
    assert "100 %" in lines
