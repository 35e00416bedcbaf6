"""Traces of other people's programs, from a folder that the machine offers: every one becomes a page.

`NIGHTJAR_TRACES=FOLDER pytest tests/profiling/test_public_traces.py` takes each trace in the folder, at any depth.
Nothing is fetched.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightjar_profiling.readers.detect import KINDS
from tests.profiling.conftest import Run

FOLDER = os.environ.get("NIGHTJAR_TRACES")
SUFFIXES = tuple(kind.suffix for kind in KINDS)


def find_traces(folder: str | None) -> list[Path]:
    if folder is None:
        return []
    paths = sorted(path for path in Path(folder).rglob("*") if path.name.endswith(SUFFIXES))
    return [path for path in paths if not any(parent.name.endswith("_pqtdir") for parent in path.parents)]


TRACES = find_traces(FOLDER)


@pytest.mark.slow
def test_the_machine_offers_traces() -> None:
    if FOLDER is None:
        pytest.skip("no public traces: NIGHTJAR_TRACES names no folder")
    assert TRACES, f"NIGHTJAR_TRACES={FOLDER}: no trace in it"


@pytest.mark.slow
@pytest.mark.parametrize("trace", TRACES, ids=str)
def test_a_public_trace_becomes_a_page(trace: Path, tmp_path: Path, run_command: Run) -> None:
    done = run_command("report", trace, "--out", "capture")
    assert done.returncode in (0, 4), done.stderr
    assert "bug in nightjar-profiling" not in done.stderr
    assert (tmp_path / "capture" / "report.html").is_file(), done.stderr
    summary = run_command("summary", "capture")
    assert summary.returncode == 0, summary.stderr
