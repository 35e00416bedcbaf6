import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.profiling.builders import TRAINING, TraceBuilder, hlo_proto, training_trace
from tests.profiling.pipeline.test_merge import capture_of
from tests.profiling.report.test_report import make_capture

PROFILE: dict[str, Any] = {
    "schema": "nightjar.profile/1",
    "backend": "jax",
    "device_time_ns": 2_000_000,
    "steps": [3, 5],
    "direct_fraction": 0.75,
    "inferred_fraction": 0.0,
    "unattributed_fraction": 0.25,
    "user_fraction": 0.5,
    "library_fraction": 0.25,
    "hot_lines": [{"file": "/me/gpt.py", "line": 7, "source": "x @ w[a]", "self_ns": 1_500_000, "fraction": 0.75}],
    "categories": {"dot": 1_500_000},
    "warnings": ["no HLO for jit_f"],
    "uncertain_fraction": 0.0,
    "busy_time_ns": None,
    "merged_lines": [],
    "modules": [],
    "advice": [],
}


def summary_of(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nightjar_profiling", "summary", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def summarise(folder: Path, profile: Any) -> subprocess.CompletedProcess[str]:
    (folder / "profile.json").write_text(json.dumps(profile))
    return summary_of(folder)


def test_the_summary_shows_shares_categories_and_hot_lines(tmp_path: Path) -> None:
    ended = summarise(tmp_path, PROFILE)
    headline, warning, shares, _, _, category, _, _, line = ended.stdout.splitlines()
    assert headline == "2.000 ms of device time in steps 3 to 5"
    assert warning == "warning: no HLO for jit_f"
    assert shares == "50.0% in your code, 25.0% in library code, 75.0% direct, 0.0% inferred, 25.0% without a stack"
    assert category.split() == ["1.500", "75.0%", "dot"]
    assert line.split() == ["1.500", "75.0%", "gpt.py:7", "x", "@", "w[a]"]


@pytest.mark.slow
def test_where_ops_ran_side_by_side_a_line_has_its_share_of_the_busy_time_too(tmp_path: Path) -> None:
    lines = [PROFILE["hot_lines"][0] | {"busy_ns": 600_000}]
    profile = PROFILE | {"busy_time_ns": 1_000_000, "hot_lines": lines}
    headline, *_, titles, line = summarise(tmp_path, profile).stdout.splitlines()
    assert headline == "2.000 ms of device time in 1.000 ms of busy time in steps 3 to 5"
    assert titles.split() == ["ms", "share", "busy", "line", "source"]
    assert line.split()[:3] == ["1.500", "75.0%", "60.0%"]
    for nothing_to_tell in (1_990_000, 0):
        assert "busy" not in summarise(tmp_path, profile | {"busy_time_ns": nothing_to_tell}).stdout


def test_a_line_names_the_others_that_it_computes(tmp_path: Path) -> None:
    merged = {"file": "/me/gpt.py", "line": 9, "operations": 2, "kept_file": "/me/gpt.py", "kept_line": 7}
    said = summarise(tmp_path, PROFILE | {"merged_lines": [merged, merged | {"line": 7}]}).stdout.splitlines()[-1]
    assert "[and for gpt.py:9: equal operations] x @ w[a]" in said


def test_the_summary_says_how_much_of_the_time_is_uncertain_where_any_is(tmp_path: Path) -> None:
    said = "1.8% of the device time uncertain: the trace records the end of some ops late"
    assert said in summarise(tmp_path, PROFILE | {"uncertain_fraction": 0.018}).stdout.splitlines()
    assert "uncertain" not in summarise(tmp_path, PROFILE | {"uncertain_fraction": 0.0}).stdout


def test_a_summary_with_tables_shows_how_busy_the_devices_were(tmp_path: Path) -> None:
    trace = TraceBuilder().hlo(7, hlo_proto(TRAINING))
    for device, run_id, name, start_ns, duration_ns in (
        (0, 1, "add.1", 0, 60_000), (0, 1, "dot.1", 50_000, 20_000), (0, 2, "dot.1", 90_000, 10_000),
        (1, 1, "dot.1", 0, 50_000),
    ):  # fmt: skip
        trace.thunk(name, start_ns, duration_ns, run_id, device_ordinal=device)
    folder = make_capture(tmp_path / "c", trace)
    ended = summary_of(folder)
    assert "0.140 ms of device time in 0.130 ms of busy time in steps 1 to 2, 4 ops on 2 devices" in ended.stdout
    assert "devices idle for 13.3% of the time between their first and last op" in ended.stdout  # 20 of 150
    assert "runs  wall ms a run  program" in ended.stdout  # 0.130 of 3, not 0.140
    assert ["0.140", "3", "0.043", "jit_step"] in [line.split() for line in ended.stdout.splitlines()]
    overview = json.loads(summary_of(folder, "--json").stdout)["overview"]
    assert (overview["busy_ns"], overview["span_ns"], overview["communication_ns"]) == (130_000, 150_000, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"hot_lines": 5}, {"hot_lines": [{}]}, {"steps": [1]}, {"device_time_ns": "long"}, {"busy_time_ns": "long"},
        {"busy_time_ns": 1_000_000},  # of which no line has a part
    ],
)  # fmt: skip
def test_an_incomplete_profile_is_bad_input_and_not_a_crash(tmp_path: Path, change: dict[str, Any]) -> None:
    ended = summarise(tmp_path, PROFILE | change)
    assert ended.returncode == 2
    assert "profile.json: not a whole profile" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_trace_without_recorded_executions_is_summarized(tmp_path: Path) -> None:
    kernel: dict[str, int | str] = {"hlo_op": "dot.1", "program_id": 7}
    trace = training_trace().event("/device:GPU:0", "Stream #14(Compute)", "gemm", 0, 40, **kernel)
    folder = capture_of(trace, tmp_path / "capture")
    command = [sys.executable, "-m", "nightjar_profiling", "summary", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "train.py:4" in ended.stdout
