from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROFILE: dict[str, Any] = {
    "schema": "nightjar.profile/1",
    "device_time_ns": 2_000_000,
    "steps": [3, 5],
    "direct_fraction": 0.75,
    "inferred_fraction": 0.0,
    "unattributed_fraction": 0.25,
    "user_fraction": 0.75,
    "hot_lines": [{"file": "/me/gpt.py", "line": 7, "source": "x @ w", "self_ns": 1_500_000, "fraction": 0.75}],
    "warnings": ["no HLO for jit_f"],
}


def summarise(folder: Path, profile: Any) -> subprocess.CompletedProcess[str]:
    (folder / "profile.json").write_text(json.dumps(profile))
    command = [sys.executable, "-m", "nightjar_profiling", "summary", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_summary_says_where_the_time_goes(tmp_path: Path) -> None:
    ended = summarise(tmp_path, PROFILE)
    headline, _, line, warning = ended.stdout.splitlines()
    assert headline.startswith("2.000 ms of device time in steps 3 to 5: 75.0% in your code")
    assert line.split() == ["1.500", "75.0%", "gpt.py:7", "x", "@", "w"]
    assert warning == "warning: no HLO for jit_f"


@pytest.mark.parametrize("change", [{"hot_lines": 5}, {"hot_lines": [{}]}, {"steps": [1]}, {"device_time_ns": "long"}])
def test_half_a_profile_is_bad_input_and_not_a_crash(tmp_path: Path, change: dict[str, Any]) -> None:
    ended = summarise(tmp_path, PROFILE | change)
    assert ended.returncode == 2
    assert "profile.json: not a whole profile" in ended.stderr
    assert "Traceback" not in ended.stderr
