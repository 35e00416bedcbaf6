"""A program that was compiled for GPUs and never ran is a capture like any other, and says everywhere what it is."""

import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightjar_profiling.cli import app
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.detect import find_kind
from nightjar_profiling.readers.estimate import read_raw
from tests.places import RECORDED

HLO = lzma.decompress((RECORDED / "ahead_scan.hlo.pb.xz").read_bytes())
RUNS = [("all-gather-start", "communication", 0, 4000), ("custom-call.1", "compute", 4000, 2000)]


def write(path: Path, **changes: Any) -> Path:
    columns = zip(*RUNS, strict=True)
    timeline = dict(zip(("instruction", "stream", "start_ns", "duration_ns"), map(list, columns), strict=True))
    document = {"schema": "nightjar.estimate/1", "device": "NVIDIA H100", "step_ns": 6000, **timeline, **changes}
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program.hlo.pb", HLO)
        archive.writestr("timeline.json", json.dumps(document))
    return path


def test_an_estimate_becomes_a_report_and_a_diff_that_say_so(tmp_path: Path) -> None:
    trace = write(tmp_path / "rank0000.estimate.zip")
    runner = CliRunner()
    made = runner.invoke(app, ["report", str(trace), "--out", str(tmp_path / "a"), "--json"])
    assert made.exit_code == 0, made.output
    profile = json.loads((tmp_path / "a" / "profile.json").read_text())
    assert (profile["backend"], profile["device_time_ns"]) == ("estimate", 6000)
    assert profile["hot_lines"][0]["line"] > 0
    assert any("not a measurement" in warning for warning in profile["warnings"])
    page = (tmp_path / "a" / "report.html").read_text()
    assert "not a measurement" in page
    assert "<title>Estimate: rank0000.estimate.zip</title>" in page
    assert "<h1>rank0000.estimate.zip <small>estimate, nothing ran</small></h1>" in page
    assert "<dt>device time, estimate, nothing ran</dt><dd>6.000 µs</dd>" in page
    flame = json.loads((tmp_path / "a" / "flamegraph.json").read_text())
    assert flame["data"][0]["labels"][0] == "device time (estimate, nothing ran)"
    summary = runner.invoke(app, ["summary", str(tmp_path / "a")])
    assert summary.stdout.startswith("0.006 ms of device time (estimate, nothing ran), 2 ops on 1 device")
    again = runner.invoke(app, ["diff", str(tmp_path / "a"), str(tmp_path / "a"), "--html", str(tmp_path / "d.html")])
    assert "A is an estimate, not a measurement" in again.stderr
    assert "before (1 execution, an estimate), 0.006 ms after (1 execution, an estimate)" in again.stdout
    assert "Estimated device time of a step" in (tmp_path / "d.html").read_text()


def test_the_file_is_known_by_its_name_though_it_is_an_archive_like_others(tmp_path: Path) -> None:
    assert find_kind(write(tmp_path / "rank0000.estimate.zip")).name == "estimate"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "nightjar.estimate/2"}, "expected 'nightjar.estimate/1'"),
        ({"instruction": ["custom-call.1", "absent.1"]}, "'absent.1', which the program lacks"),
        ({"start_ns": [0]}, "'start_ns' is not a list as long as"),
        ({"duration_ns": [1.5, 2]}, "holds 1.5, expected int"),
    ],
)
def test_an_invalid_estimate_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_raw(write(tmp_path / "rank0000.estimate.zip", **changes))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0000.estimate.zip")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="not a valid estimate"):
        read_raw(path)
