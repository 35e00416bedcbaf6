"""Traces of other people's programs, from a folder that the machine offers: every one becomes a page.

The folder is that of `NIGHTJAR_TEST_DATA`; each trace in it, at any depth, is taken. Nothing is fetched.
"""

from pathlib import Path

import pytest

from nightjar_profiling.readers.detect import KINDS
from tests.places import SHARED_DATA
from tests.profiling.conftest import Run

SUFFIXES = tuple(kind.suffix for kind in KINDS)


def find_traces(folder: Path) -> list[Path]:
    return sorted(
        path
        for room in ("xplane", "nsys-jax", "nsys-sqlite", "traces")
        for path in (folder / room).rglob("*")
        if path.name.endswith(SUFFIXES) and path.name != "golden.json"
    )


TRACES = find_traces(SHARED_DATA)


@pytest.mark.slow
def test_the_machine_offers_traces() -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no public traces: {SHARED_DATA} is not there: NIGHTJAR_TEST_DATA names its folder")
    assert TRACES, f"{SHARED_DATA}: no trace in it"


@pytest.mark.slow
@pytest.mark.parametrize("trace", TRACES or [None], ids=str)
def test_a_public_trace_becomes_a_page(trace: Path | None, tmp_path: Path, run_command: Run) -> None:
    if trace is None:
        pytest.skip(f"{SHARED_DATA} is not there: NIGHTJAR_TEST_DATA names its folder")
    done = run_command("report", trace, "--out", "capture")
    assert done.returncode in (0, 4), done.stderr
    assert "bug in nightjar-profiling" not in done.stderr
    assert (tmp_path / "capture" / "report.html").is_file(), done.stderr
    summary = run_command("summary", "capture")
    assert summary.returncode == 0, summary.stderr
