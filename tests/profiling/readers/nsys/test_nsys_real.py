"""A real Nsight Systems records a small program of NVTX ranges, and its report is read."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nightjar_profiling.readers.nsys.nsight import find_nsys
from nightjar_profiling.readers.nsys.nsys_export import read_sqlite
from nightjar_profiling.readers.nsys.nsys_rep import read_raw
from tests.profiling.capture.test_backends import SIGNALLED, start
from tests.profiling.conftest import Run

PROGRAM = """
import time, nvtx
with nvtx.annotate("XlaCompile:#module=jit_f,program_id=3#", domain="TSL"):
    with nvtx.annotate("XlaPass:#name=dce,module=jit_f,program_id=3#", domain="TSL"):
        time.sleep(0.01)
with nvtx.annotate("plain"):
    time.sleep(0.01)
"""
STEPS = """
import jax
with jax.profiler.StepTraceAnnotation("train", step_num=1):
    jax.jit(lambda x: x + 1)(1)
"""
pytestmark = pytest.mark.nsys


def test_ranges_that_a_real_nsys_recorded_have_their_names_domains_and_nesting(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="the package nvtx is not installed")
    nsys = find_nsys(os.environ)
    assert nsys is not None
    report = tmp_path / "run.nsys-rep"
    options = [
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--stats=false",
        f"--output={report.with_suffix('')}",
    ]
    command = [nsys, "profile", *options, sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert report.is_file(), done.stdout + done.stderr
    exported = tmp_path / "run.sqlite"
    subprocess.run([nsys, "export", "--type=sqlite", f"--output={exported}", str(report)], check=True, timeout=300)
    with closing(sqlite3.connect(exported)) as base:
        if not base.execute("SELECT 1 FROM sqlite_master WHERE name LIKE 'NVTX_EVENTS%'").fetchall():
            pytest.skip("this nsys records nothing of this nvtx package (2022.4 needs nvtx 0.2.8 or older)")
    raw = read_raw(report)
    found = {row["name"]: row for row in raw.tables["ranges"].iter_rows(named=True)}
    outer, inner = "XlaCompile:#module=jit_f,program_id=3#", "XlaPass:#name=dce,module=jit_f,program_id=3#"
    assert set(found) == {outer, inner, "plain"}
    assert found[outer]["domain"] == found[inner]["domain"] == "TSL"
    assert found[inner]["parent_id"] == found[outer]["range_id"]
    assert found[outer]["duration_ns"] > found[inner]["duration_ns"] >= 10_000_000
    assert raw.tables["compile"].select("program", "program_id").rows() == [("jit_f", 3)] * 2
    assert any("no GPU work" in text for text in raw.warnings)
    assert read_sqlite(exported).tables["ranges"].equals(raw.tables["ranges"])


@pytest.mark.slow
def test_a_real_nsys_without_a_gpu_keeps_the_exit_code_and_says_the_lack(tmp_path: Path, run_command: Run) -> None:
    program = "import jax, sys; print(jax.jit(lambda x: x + 1)(1)); sys.exit(int(sys.argv[1]))"
    variables = {"JAX_PLATFORMS": "cpu"}
    for code in (0, 7):
        command = (sys.executable, "-c", program, str(code))
        done = run_command("capture", "--backend", "nsys", "--out", f"c{code}", "--", *command, **variables)
        assert done.returncode == (code or 4), done.stderr
        assert done.stdout.startswith("2\n")
        assert "no kernels and no thunks" in done.stderr
        assert "of a CPU, capture with --backend jax" in done.stderr
    report = tmp_path / "c0" / "raw" / "rank0000.nsys-rep"
    assert any("no GPU work" in text for text in read_raw(report).warnings)
    assert [path.name for path in report.with_suffix(".dump").glob("*after_optimizations.hlo.pb")]
    bare = run_command("report", report, "--out", "bare")
    assert bare.returncode == 4
    assert "of a CPU, capture with --backend jax" in bare.stderr
    steps = run_command("capture", "--backend", "nsys", "--steps", "1", "--out", "s", "--", sys.executable, "-c", STEPS)
    assert steps.returncode == 3
    assert "nsys is told of steps through the driver of a GPU, and there is none" in steps.stderr


@pytest.mark.slow
def test_a_signal_passes_through_a_real_nsys_which_still_writes_its_report(tmp_path: Path) -> None:
    with start(tmp_path / "c", SIGNALLED, "nsys") as process:
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=120)
    assert process.returncode == 40 + signal.SIGUSR1
    assert [path.name for path in (tmp_path / "c" / "raw").iterdir()] == ["rank0000.nsys-rep"]
