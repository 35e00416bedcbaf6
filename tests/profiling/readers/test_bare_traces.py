"""Traces that lack something, from the raw file to every output: nothing crashes, and what is missing is said."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_profiling import load
from tests.profiling.builders import TRAINING, Hlo, TraceBuilder, hlo_proto, training_trace
from tests.profiling.conftest import Run

pytestmark = pytest.mark.slow

NOTHING_EXPLAINED = 4


def without_hlo() -> TraceBuilder:
    return TraceBuilder().thunk("dot.1", 0, 60).thunk("add.1", 60, 5)


def of_a_tiny_program() -> TraceBuilder:
    return TraceBuilder().hlo(7, hlo_proto({"entry": [Hlo("parameter.0", frame=2)]})).thunk("parameter.0", 0, 0)


def of_no_program() -> TraceBuilder:
    """Ops of a program that the trace does not hold, beside one that it holds."""
    return TraceBuilder().hlo(7, hlo_proto(TRAINING)).thunk("dot.9", 0, 60, program_id=9)


def only_communication() -> TraceBuilder:
    reducing = {"sum": [Hlo("add.2", frame=3)], "entry": [Hlo("all-reduce.1", frame=2, calls=("sum",))]}
    return TraceBuilder().hlo(7, hlo_proto(reducing)).thunk("all-reduce.1", 0, 60)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (training_trace, 0),  # one device, no communication, no steps
        (without_hlo, NOTHING_EXPLAINED),
        (of_a_tiny_program, 0),
        (of_no_program, NOTHING_EXPLAINED),
        (only_communication, 0),
    ],
)
def test_a_bare_trace_passes_through_every_command(
    make: Callable[[], TraceBuilder], code: int, tmp_path: Path, run_command: Run
) -> None:
    trace = make().write(tmp_path, "host.xplane.pb")
    for name in "ab":
        done = run_command("report", trace, "--out", name)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert (tmp_path / name / "report.html").stat().st_size > 10_000
    summary = run_command("summary", "a", "--json")
    assert summary.returncode == 0, summary.stderr
    profile = json.loads(summary.stdout)
    shares = [profile[f"{kind}_fraction"] for kind in ("direct", "inferred", "unattributed")]
    assert sum(shares) in (pytest.approx(1), 0)
    assert run_command("summary", "a").returncode == 0
    exported = run_command("export", "a")
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "a" / "exports" / "stacks.folded").is_file()
    compared = run_command("diff", "a", "b", "--html", "diff.html")
    assert compared.returncode == 0, compared.stderr
    assert "nothing can be compared" in compared.stderr or "fewer than two executions" in compared.stderr
    assert (tmp_path / "diff.html").is_file()
    merged = run_command("merge", "a", "b", "--out", "all")
    assert merged.returncode == 0, merged.stderr


def test_a_trace_in_which_nothing_ran_is_no_capture_and_says_so_everywhere(tmp_path: Path, run_command: Run) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(TRAINING)).write(tmp_path, "host.xplane.pb")
    done = run_command("report", trace, "--out", "a")
    assert done.returncode == NOTHING_EXPLAINED
    assert f"{trace}: programs (jit_step), but no event of any thread" in done.stderr
    assert "trace with host_tracer_level=1 or more" in done.stderr
    assert ".nightjar-new" not in done.stderr
    for command in (("summary", "a"), ("export", "a"), ("diff", "a", "a"), ("report", "a")):
        failed = run_command(*command)
        assert failed.returncode in (2, NOTHING_EXPLAINED), command
        assert "Traceback" not in failed.stderr
        assert "Hint:" in failed.stderr


def test_a_log_folder_gives_its_newest_run_and_the_one_before_is_named(tmp_path: Path, run_command: Run) -> None:
    places = [Path("log", "plugins", "profile", date) for date in ("2026_01_02_03_04_05", "2026_01_02_03_04_06")]
    for place in places:
        (tmp_path / place).mkdir(parents=True)
        training_trace().write(tmp_path / place, "host.xplane.pb")
    done = run_command("report", "log", "--out", "a")
    assert done.returncode == 0
    assert f"{places[1]}: the newest of 2 runs; the one before: nightjar-profiling report {places[0]}" in done.stderr
    done = run_command("report", places[0], "--out", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert load(tmp_path / "log").ops.collect().height == load(tmp_path / "b").ops.collect().height
