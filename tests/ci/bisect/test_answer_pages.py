"""The answer as a page and on a terminal."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from nightjar_ci.bisect.result.answer import Answer, RungSummary, Side, find_wall_time
from nightjar_ci.bisect.result.difference import Change
from nightjar_ci.bisect.result.report import draw_results, print_answer, render_html, write_answer
from nightjar_ci.bisect.state import Probe
from nightjar_ci.formats.documents import write_text
from tests.ci.site.test_site import make_site

DOT = "  + 1 dot f32[8]  (dot.1 at /t.py:3)"


def summary(name: str, **changes: object) -> RungSummary:
    usual = RungSummary(
        name=name, when=None, note=None, probability=0.5, good=0, bad=0, cannot_tell=0, values=(), why=None
    )
    return usual.model_copy(update=changes)


def make_answer(**changes: object) -> Answer:
    usual = Answer(
        id="x", find="regression", kind="culprit", title="It came with jax 0.4.32 (probability 0.999).", message="m",
        culprits=("jax 0.4.32",), probability=0.999, effect="2 -> 8, 4 times as much", inside=None,
        changes=(Change(name="jax", old="0.4.31", new="0.4.32", links=("https://host/compare",)),),
        before=Side(name="jax 0.4.31", answers="good", reproduce="uv run --with jax==0.4.31 -- python t.py"),
        after=Side(name="jax 0.4.32", answers="bad", reproduce="uv run --with jax==0.4.32 -- python t.py"),
        places=tuple(summary(f"jax 0.4.{index}", values=(1.0 + index, 2.0)) for index in range(31, 44)),
        probes=(), command=("python", "t.py"), metric="us_per_step", tests=13, builds=4, duration_s=90.0, notes=(),
        programs=("JAX hands other programs to XLA:", "jit_f: 1 -> 2 instructions", DOT),
    )  # fmt: skip
    return usual.model_copy(update=changes)


def test_the_page_of_thirteen_tests_is_small_and_runs_nothing(tmp_path: Path) -> None:
    page = write_answer(make_answer(), tmp_path)
    assert page.stat().st_size < 30_000
    text = page.read_text()
    assert "<script" not in text
    assert text.count("<svg") == 1
    assert text.count('class="dot"') == 26
    assert "dot.1 at /t.py:3" in text


def test_values_have_the_digits_that_tell_the_ends_apart() -> None:
    low, high = 2.345678, 2.345679
    answer = make_answer(places=(summary("a", values=(low,)), summary("b", values=(high,))))
    for text in (print_rungs(answer), render_html(answer)):
        assert str(low) in text
        assert str(high) in text


def test_every_mark_lies_within_the_picture() -> None:
    for values in ((1.0, 1.0), (0.0, -5.0), (1e-9, 1e9), (3.0,)):
        answer = make_answer(places=tuple(summary(f"n{index}", values=values) for index in range(300)))
        marks = re.findall(r'(?:cy|y)="(-?[\d.]+)"', draw_results(answer))
        assert len(marks) > 300
        assert all(0 <= float(y) <= 280 for y in marks)
    assert draw_results(make_answer(places=(summary("a"),))) == ""


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((1.0, 1e4), ["0.909", "9.53", "100", "1.05e+03", "1.1e+04"]),
        ((10.0, 20.0), ["9.5", "12.2", "15", "17.8", "20.5"]),
        ((2.345678, 2.345679), ["2.3456779", "2.3456782", "2.3456785", "2.3456788", "2.3456791"]),
    ],
)
def test_ticks_of_an_axis_are_evenly_spaced_in_its_scale(values: tuple[float, ...], ticks: list[str]) -> None:
    drawn = draw_results(make_answer(places=(summary("a", values=values),)))
    assert re.findall(r'text-anchor="end">([^<]*)<', drawn)[:5] == ticks


def test_an_exit_code_has_a_bar_for_each_tested_rung_with_the_interval_of_its_rate() -> None:
    places = (summary("a", good=8), summary("b"), summary("c", good=5, bad=3), summary("<d>", bad=9, cannot_tell=2))
    drawn = draw_results(make_answer(places=places, metric=None))
    titles = re.findall(r"<title>([^<]*)</title>", drawn)
    assert titles == [
        "a: 0 of 8 fail (0% to 32%, 95 %)",
        "c: 3 of 8 fail (14% to 69%, 95 %)",
        "&lt;d&gt;: 9 of 9 fail (70% to 100%, 95 %)",
    ]
    bars = [float(height) for height in re.findall(r'<rect[^>]*height="([\d.]+)"', drawn)]
    assert bars == [0.0, pytest.approx(bars[2] * 3 / 8, abs=0.1), bars[2]]
    assert drawn.count('class="interval"') == 3
    assert ">100%<" in drawn


def make_probe(at: str, build_s: float, test_s: float) -> Probe:
    return Probe(
        stage=0, rung=0, name="a", outcome="good", value=None, state="completed", folder="probes/s0-a",
        started_at=f"2026-11-01T{at}.000+00:00", build_s=build_s, test_s=test_s,
    )  # fmt: skip


def test_probes_in_parallel_count_once_in_the_wall_time_and_pauses_not_at_all() -> None:
    times = (("10:00:00", 5.0, 20.0), ("10:00:10", 0.0, 5.0), ("10:00:20", 0.0, 15.0), ("11:00:00", 0.0, 4.0))
    assert find_wall_time([make_probe(*time) for time in reversed(times)]) == pytest.approx(35 + 4)
    assert "1 min 30 s of work in 39.0 s." in " ".join(render_html(make_answer(wall_s=39.0)).split())


def test_every_link_of_a_published_bisection_leads_somewhere(tmp_path: Path) -> None:
    folder, difference = tmp_path / "bisections" / "x", "explain/diff/difference.html"
    write_text(folder / difference, "<!doctype html>")
    probe = make_probe("10:00:00", 1.0, 1.0)
    write_answer(make_answer(probes=(probe,), explained=("e",), pages=(difference,)), folder)
    make_site(tmp_path)
    page = tmp_path / "site" / "bisections" / "x" / "report.html"
    assert "probes/s0-a" in page.read_text()
    assert re.findall(r'href="([^":]+)"', page.read_text()) == [difference]
    assert (page.parent / difference).is_file()


def test_names_of_rungs_cannot_become_markup() -> None:
    evil = '<script>alert(1)</script>"&'
    page = render_html(make_answer(places=(summary(evil, values=(1.0,)),), metric=evil))
    assert "<script" not in page


def print_rungs(answer: Answer) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_answer(answer, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_terminal_has_what_a_maintainer_wants() -> None:
    text = print_rungs(make_answer())
    for part in (
        "It came with jax 0.4.32",
        "us_per_step: 2 -> 8, 4 times as much",
        "uv run --with jax==0.4.31 -- python t.py",
        "uv run --with jax==0.4.32 -- python t.py",
        "jax 0.4.31 → 0.4.32  https://host/compare",
        "+ 1 dot f32[8]  (dot.1 at /t.py:3)",
    ):
        assert part in text


def test_of_a_long_ladder_the_terminal_shows_tested_and_probable_rungs_and_of_a_short_one_all() -> None:
    told = [
        summary("tested", probability=0.0, good=1),
        summary("failing", probability=0.0, bad=1),
        summary("silent", probability=0.0, cannot_tell=1),
        summary("measured", probability=0.0, values=(1.0,)),
        summary("probable", probability=0.02),
    ]
    others = [summary(f"untested{number}", probability=0.01) for number in range(20)]
    long, short = (print_rungs(make_answer(places=(*told, *others[:count]))) for count in (12, 11))
    assert [rung.name for rung in told if rung.name not in long] == []
    assert "untested" not in long
    assert short.count("untested") == 11
