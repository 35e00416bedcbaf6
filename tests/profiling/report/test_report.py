import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_profiling.analyses.categories import summarise_categories
from nightjar_profiling.analyses.communication.clocks import estimate_clocks
from nightjar_profiling.analyses.communication.overlap import summarise_overlap
from nightjar_profiling.capture_folder.manifest import read_manifest, write_manifest
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.pipeline.ingest import ingest
from nightjar_profiling.report.contents import page_document
from nightjar_profiling.report.render import duration, percent, title_of, unpack
from nightjar_profiling.report.sections import collectives
from tests.profiling.builders import TraceBuilder, training_trace
from tests.profiling.capture_folder.test_manifest import MANIFEST
from tests.profiling.conftest import Run
from tests.profiling.tabled import collective, op, tables

SOURCE = "import jax\n\n\nloss = f(x) < y </script><b>bold</b>\n"


def make_capture(folder: Path, trace: TraceBuilder) -> Path:
    trace.write(folder / "raw", "rank0000.xplane.pb")
    source = folder / "sources" / "home" / "me" / "train.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    write_manifest(folder, MANIFEST)
    ingest(folder, read_manifest(folder), copy_sources=False)
    return folder


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_report_is_one_page_that_loads_nothing(tmp_path: Path) -> None:
    elements = Elements()
    elements.feed((make_capture(tmp_path, training_trace()) / "report.html").read_text())
    tags = {tag for tag, _ in elements.found}
    assert {"nav", "script", "style"} <= tags
    assert tags.isdisjoint({"link", "img", "iframe"})
    assert [attributes for _, attributes in elements.found if "src" in attributes or "href" in attributes] == []


def embedded(page: str) -> dict[str, Any]:
    return unpack(page.partition('id="packed">')[2].partition("</script>")[0])


def test_a_page_contains_the_sources_and_no_source_can_end_the_script(tmp_path: Path) -> None:
    page = (make_capture(tmp_path, training_trace()) / "report.html").read_text()
    assert embedded(page)["sources"] == {"/home/me/train.py": SOURCE}
    assert len(re.findall("</script", page)) == 2
    assert "bold" not in page


def test_warnings_and_commands_are_shown_as_text(tmp_path: Path) -> None:
    trace = training_trace()
    trace.space.warnings.append(b"<img src=x>")
    page = (make_capture(tmp_path, trace) / "report.html").read_text()
    assert "&lt;img src=x&gt;" in page
    assert "<img" not in page


def test_the_times_on_the_page_are_those_of_the_ops(tmp_path: Path) -> None:
    data = embedded((make_capture(tmp_path, training_trace()) / "report.html").read_text())
    assert data["total_ns"] == 100
    assert sum(data["shares"]["split"]["direct_ns"]) == sum(data["shares"]["root"]["direct_ns"]) == 92
    assert sum(data["shares"]["split"]["inferred_ns"]) == 8
    assert data["timeline"]["duration"].tolist() == [60, 30, 8, 2]
    assert data["instructions"]["name"] == ["dot.1", "fusion.1", "copy.1", "add.1"]
    assert sum(data["instructions"]["total_ns"]) == 100


def test_a_trace_without_hlo_makes_a_report_that_says_so(tmp_path: Path) -> None:
    page = (make_capture(tmp_path, TraceBuilder().thunk("dot.1", 0, 60)) / "report.html").read_text()
    assert "no HLO for 1 of the programs" in page
    assert embedded(page)["instructions"]["name"] == ["dot.1"]
    assert "<b>No Python stacks</b> in this trace" in page


def test_report_rebuilds_a_capture_with_other_user_code(run_command: Run, tmp_path: Path) -> None:
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
    has_sources = (tmp_path / "made" / "sources").is_dir()
    assert ("may differ from what ran" in done.stderr) == has_sources


def test_summary_prints_the_shares_and_the_lines(run_command: Run, tmp_path: Path) -> None:
    make_capture(tmp_path / "capture", training_trace())
    lines = run_command("summary").stdout.splitlines()
    assert lines[0] == "0.000 ms of device time in steps 1 to 2, 4 ops on 1 device"
    assert lines[1] == "100.0% in your code, 0.0% in library code, 92.0% direct, 8.0% inferred, 0.0% without a stack"
    assert lines[-1].split()[:3] == ["0.000", "100.0%", "train.py:4"]


def test_summary_prints_the_kernels_where_there_are_no_lines(run_command: Run, tmp_path: Path) -> None:
    trace = TraceBuilder().thunk("dot.1", 0, 60_000).thunk("add.1", 60_000, 20_000)
    make_capture(tmp_path / "capture", trace)
    lines = run_command("summary").stdout.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["ms", "share", "runs", "kernel", "or", "op"],
        ["0.060", "75.0%", "1", "dot.1"],
        ["0.020", "25.0%", "1", "add.1"],
    ]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("report", "none"), 2, "none: no such file or folder"),
        (("report", "empty"), 2, "manifest.json: no such file"),
        (("report", "bare"), 2, "no raw trace"),
        (("report", "bad.xplane.pb", "--out", "new"), 2, "bad.xplane.pb: holds no plane"),
        (("report", "bare", "--out", "x"), 2, "--out: only for a raw trace"),
        (("report", "no_hlo"), 4, "No device time could be attributed to Python: the trace has no HLO; the page"),
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
    assert re.search(r"^error: .+\n(Hint: .+\n)?\Z", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "thesis").iterdir()) == ["thesis.txt"]


def test_debug_prints_the_traceback(run_command: Run) -> None:
    assert "Traceback" in run_command("--debug", "report", "none").stderr


def test_formats() -> None:
    assert percent(0.9996) == ">99.9 %"
    assert percent(0.0) == "0.0 %"
    assert duration(1_500) == "1.500 µs"
    assert title_of(("/venv/bin/python3", "-m", "pkg.train", "--lr", "1")) == "pkg.train --lr 1"
    assert title_of(()) == ""
    assert title_of(("/venv/site-packages/ipykernel_launcher.py", "-f", "/tmp/kernel.json")) == "Notebook"


def two_ranks(skew_ns: int) -> Tables:
    ops = [
        op(name, 100 * n + start + skew_ns * rank, took, rank=rank, execution=n)
        for n in range(3)
        for rank in (0, 1)
        for name, start, took in (("dot.1", 0, 30), ("all-reduce.1", 20, 20), ("gemm.1", 60, 10))
    ]
    reduced = [
        collective("all-reduce.1", row["start_ns"], 20, rank=row["rank"], execution=row["execution"])
        for row in ops
        if row["instruction"] == "all-reduce.1"
    ]
    found = tables(ops=ops, collectives=reduced)
    return replace(found, clocks=estimate_clocks(found.collectives))


def test_bandwidths_are_those_of_the_device_that_came_last() -> None:
    ranks = [
        collective("all-reduce.1", 0, 90 - wait, rank=rank, wait_ns=wait, algbw_gb_per_s=rate, busbw_gb_per_s=rate)
        for rank, wait, rate in ((0, 60, 10.0), (1, 0, 40.0))
    ]
    columns = {each["name"]: each["values"] for each in collectives(tables(collectives=ranks), {})["columns"]}
    assert (columns["bus GB/s"], columns["algorithm GB/s"], columns["runs"]) == ([40.0], [40.0], [2])


def document(found: Tables) -> dict[str, Any]:
    return page_document(found, lambda _: True, lambda _: None, None)


def test_the_timeline_shows_the_ops_of_all_ranks_on_one_clock() -> None:
    timeline = document(two_ranks(skew_ns=5000))["timeline"]
    by_rank = np.split(timeline["start"], 2)
    assert by_rank[0].tolist() == by_rank[1].tolist()


def test_exposed_communication_and_categories_on_the_page_are_those_of_the_analyses() -> None:
    found = two_ranks(skew_ns=0)
    data = document(found)
    exposed = data["timeline"]["exposed"]
    assert exposed["start"].tolist() == [30, 130, 230] * 2
    assert exposed["duration"].sum() == summarise_overlap(found)["exposed_ns"].sum() == 60
    times: Counter[str] = Counter()
    for category, ns in zip(data["instructions"]["category"], data["instructions"]["total_ns"], strict=True):
        times[category] += ns
    assert times == dict(summarise_categories(found).select("category", "device_ns").iter_rows())
    colours = {data["groups"][group] for group in data["instructions"]["group"]}
    assert colours == {"communication", "other"}
