"""The report in a real browser: real clicks, and the resulting text."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_profiling.capture_folder.manifest import read_manifest, write_manifest
from nightjar_profiling.pipeline.ingest import ingest
from tests.bench.agents.known import make_captures
from tests.bench.profiling import outputs
from tests.profiling.builders import FRAMES, TRAINING, Hlo, TraceBuilder, hlo_proto, training_trace
from tests.profiling.capture_folder.test_manifest import MANIFEST
from tests.profiling.chromium import Page, open_browser
from tests.profiling.report.test_report import make_capture

pytestmark = pytest.mark.browser

ROW = "document.querySelector('.lines .body .row[data-row=\"{}\"]')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("chromium") / "profile") as found:
        yield found


def text_of(page: Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r}).innerText"))


def test_a_click_on_a_hot_line_shows_its_source_and_its_time(page: Page, tmp_path: Path) -> None:
    page.open(make_capture(tmp_path, training_trace()) / "report.html")
    assert text_of(page, ".bar .jump") == "and 2 that only call"
    page.click("document.querySelector('.bar .jump')")
    page.click(ROW.format(1))  # the caller, line 9
    assert text_of(page, ".source .title b") == "train.py:9"
    page.click(ROW.format(0))
    assert text_of(page, ".source .title b") == "train.py:4"
    assert text_of(page, ".source .now") == "100 ns self · 100 ns with calls"
    self_ns, total_ns, number, source = text_of(page, ".source .line.here").splitlines()
    assert (self_ns, total_ns, number) == ("100.000", "100.000", "4")
    assert source == "loss = f(x) < y </script><b>bold</b>"
    assert "copy.1" in text_of(page, ".source .stacks")
    assert page.value("location.hash") == "#lines//home/me/train.py:4"


def test_a_line_that_xla_merged_names_the_line_that_computes_it(page: Page, tmp_path: Path) -> None:
    entry = [Hlo("parameter.0"), Hlo("sine.1", frame=2, operands=("parameter.0",), op_name="sin")]
    lowered = hlo_proto(
        {"main": [*entry, Hlo("sine.2", 1, ("parameter.0",), op_name="sin"), Hlo("add.1", 2, ("sine.1", "sine.2"))]}
    )
    lowered.hlo_module.entry_computation_id = 1
    program = hlo_proto({"main": [*entry, Hlo("add.1", 2, ("sine.1", "sine.1"), op_name="add")]})
    folder = make_capture(tmp_path, TraceBuilder().hlo(7, program).thunk("sine.1", 0, 60).thunk("add.1", 60, 40))
    (folder / "raw" / "rank0000.lowered").mkdir()
    (folder / "raw" / "rank0000.lowered" / "0.hlo.pb").write_bytes(lowered.SerializeToString())
    ingest(folder, read_manifest(folder), copy_sources=False)
    page.open(folder / "report.html")
    assert "equal operations of train.py:9 (1 operation)" in text_of(page, ".source .stacks")
    page.click(ROW.format(1))
    assert "XLA computes operations of this line at train.py:4" in text_of(page, ".source .stacks")
    assert page.value("document.querySelectorAll('nav:not(.parts) button').length") <= 8


def test_steps_roofline_devices_and_memory_have_a_picture(page: Page, tmp_path: Path) -> None:
    make_captures(tmp_path)
    report = tmp_path / "before" / "report.html"
    titles = "[...document.querySelectorAll('.view:not([hidden]) figure.chart title')].map((one) => one.textContent)"
    page.open(report, "#steps")
    assert page.value(titles)[0] == "rank 0, step 0: device 691.200 µs, host 691.200 µs"
    page.open(report, "#devices")
    assert page.value(titles)[0].startswith("rank 0, device 0: computes alone for 2.074 ms")
    assert page.problems() == []


def test_the_page_loads_nothing_and_reports_no_error(page: Page, tmp_path: Path) -> None:
    report = make_capture(tmp_path, training_trace()) / "report.html"
    for view in ("lines", "flame", "timeline", "instructions", "categories", "programs", "devices"):
        page.open(report, f"#{view}")
        assert text_of(page, "[aria-selected=true]") != ""
    assert {address.split(":")[0] for address in page.requests()} <= {"file", "about"}
    assert page.problems() == []


def test_the_flame_graph_zooms_and_searches(page: Page, tmp_path: Path) -> None:
    page.open(make_capture(tmp_path, training_trace()) / "report.html", "#flame")
    names = "[...document.querySelectorAll('.flame .node')].map((one) => one.textContent)"
    assert page.value(names) == [
        "all device time", "main  train.py:9", "loss  train.py:4", "Linear.__call__  linear.py:422",
    ]  # fmt: skip
    page.click("[...document.querySelectorAll('.flame .node')].at(-1)")
    assert page.value("document.querySelectorAll('.flame .node.above').length") == 3
    assert text_of(page, ".view:not([hidden]) .detail").startswith("Linear.__call__")
    page.click("document.querySelector('.view:not([hidden]) input')")
    page.type("linear")
    assert text_of(page, ".view:not([hidden]) .status") == "98 ns, 98.0 % match"


def test_a_node_too_narrow_for_a_name_is_painted_and_can_be_clicked(page: Page, tmp_path: Path) -> None:
    outputs.make_capture(tmp_path / "many", outputs.synthesize(4_000))  # of 400 equal stacks
    page.open(tmp_path / "many" / "report.html", "#flame")
    page.wait("document.querySelector('.flame canvas')?.width > 0")
    x, y, width = page.value(
        "(() => { const b = document.querySelector('.flame canvas').getBoundingClientRect();"
        " return [b.x, b.y, b.width]; })()"
    )
    page.click_at(x + width * 0.9, y + 21 * 3 + 10)
    assert page.value("[...document.querySelectorAll('.flame .node.above')].map((one) => one.textContent)[0]") == (
        "all device time"
    )
    chosen = "document.querySelectorAll('.flame .node')[3]"
    assert text_of(page, ".view:not([hidden]) .detail b").split() == page.value(f"{chosen}.textContent").split()
    assert page.value(f"{chosen}.getBoundingClientRect().width") == pytest.approx(width, abs=1)


def test_a_click_on_an_op_of_the_timeline_shows_its_stack_and_leads_to_its_line(page: Page, tmp_path: Path) -> None:
    page.open(make_capture(tmp_path, training_trace()) / "report.html", "#timeline")
    x, y, width = page.wait(
        "(() => { const b = document.querySelector('canvas').getBoundingClientRect(); return [b.x, b.y, b.width]; })()"
    )
    page.click_at(x + 190 + (width - 190) * 0.3, y + 44 + 26 + 20 + 8)
    assert text_of(page, ".view:not([hidden]) .detail").startswith("dot.1")
    assert "60 ns" in text_of(page, ".view:not([hidden]) .detail")
    innermost = text_of(page, ".stack li").split()
    assert innermost == ["linear.py:422", "Linear.__call__"]
    page.click("document.querySelectorAll('.stack .jump')[1]")
    assert text_of(page, ".source .title b") == "train.py:4"


def test_the_keys_of_the_timeline_work_as_soon_as_it_is_shown(page: Page, tmp_path: Path) -> None:
    page.open(make_capture(tmp_path, training_trace()) / "report.html")
    page.click("document.getElementById('tab-timeline')")
    page.wait("document.querySelector('canvas')?.style.height > ''")  # set when the canvas is drawn at its size
    picture = "document.querySelector('canvas').toDataURL()"
    whole = page.value(picture)
    page.press("w", "w")
    page.wait(f"{picture} !== {json.dumps(whole)}")
    page.press("s", "s")
    page.wait(f"{picture} === {json.dumps(whole)}")
    page.value("document.activeElement.blur()")
    page.press("ArrowRight")
    assert text_of(page, ".view:not([hidden]) .detail").startswith("dot.1")
    assert text_of(page, "[aria-selected=true]") == "When"


def test_a_long_op_right_behind_a_short_one_is_drawn(page: Page, tmp_path: Path) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(TRAINING))
    for begin_ns in (0, 2_000_000):
        trace.thunk("add.1", begin_ns, 50).thunk("dot.1", begin_ns + 50, 1_000_000)
    page.open(make_capture(tmp_path, trace) / "report.html", "#timeline")
    colour_at = (
        "(() => {{ const c = document.querySelector('canvas'), scale = c.width / c.clientWidth;"
        " const at = [190 + (c.clientWidth - 190) * {}, 44 + 26 + 20 + 4].map((one) => Math.round(one * scale));"
        " return c.clientWidth && c.getContext('2d').getImageData(...at, 1, 1).data.join(); }})()"
    )
    page.wait(f"({colour_at.format(0.25)} || '0,0,0,0') !== '0,0,0,0'")  # it is drawn, not only laid out
    running, idle, running_again = (page.value(colour_at.format(share)) for share in (0.25, 0.5, 0.9))
    assert running == running_again != idle


def test_a_table_is_searched_and_sorted(page: Page, tmp_path: Path) -> None:
    page.open(make_capture(tmp_path, training_trace()) / "report.html", "#instructions")
    shown = "[...document.querySelectorAll('.view:not([hidden]) .body .row')].map((e) => e.children[4].innerText)"
    assert page.value(shown) == ["dot.1", "fusion.1", "copy.1", "add.1"]
    page.click("document.querySelectorAll('.view:not([hidden]) .titles button')[4]")
    assert page.value(shown) == ["add.1", "copy.1", "dot.1", "fusion.1"]
    page.value("document.activeElement.blur()")
    page.value("document.querySelector('.view:not([hidden]) input').focus()")
    page.type("copy")
    assert page.value(shown) == ["copy.1"]
    assert text_of(page, ".view:not([hidden]) .status") == "1 of 4"


def test_a_page_of_100k_ops_is_clicked_and_searched(page: Page, tmp_path: Path) -> None:
    tables = outputs.synthesize(100_000)
    outputs.make_capture(tmp_path / "many", tables)
    report = tmp_path / "many" / "report.html"
    hottest = json.loads((tmp_path / "many" / "profile.json").read_text())["hot_lines"][0]
    page.open(report)
    page.click(ROW.format(0))
    assert text_of(page, ".source .title b") == f"{Path(hottest['file']).name}:{hottest['line']}"
    assert text_of(page, ".source .now").startswith(f"{hottest['self_ns'] / 1e6:.3f} ms self")
    page.open(report, "#instructions")
    page.click("document.querySelector('.view:not([hidden]) input')")
    name = tables.instructions["name"][-1]
    page.type(name)
    page.wait("document.querySelector('.view:not([hidden]) .status').innerText === '1 of 2,000'")
    runs = tables.ops.filter(instruction=name)["duration_ns"]
    first = text_of(page, ".view:not([hidden]) .body .row").splitlines()
    assert (first[0], first[2], first[4]) == (f"{int(runs.sum()) / 1e6:.3f}", str(runs.len()), name)
    page.open(report, "#timeline")
    assert "100,000 ops" in text_of(page, ".view:not([hidden])")
    assert page.problems() == []


def test_a_hostile_name_is_text(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "</script><img src=x onerror=\"document.title='evil'\">"
    monkeypatch.setitem(FRAMES, 2, (1, f"/home/{evil}.py", 4, evil))
    from tests.profiling.builders import TRAINING

    trace = TraceBuilder().hlo(7, hlo_proto(TRAINING)).thunk("dot.1", 0, 60).thunk(evil, 60, 5)
    trace.write(tmp_path / "raw", "rank0000.xplane.pb")
    write_manifest(tmp_path, MANIFEST)
    ingest(tmp_path, read_manifest(tmp_path), copy_sources=False)
    for view in ("lines", "flame", "timeline", "instructions"):
        page.open(tmp_path / "report.html", f"#{view}")
        assert page.value("document.title") == "Profile: train.py"
        assert page.value("document.images.length") == 0
    assert evil in text_of(page, ".view:not([hidden]) .table")
