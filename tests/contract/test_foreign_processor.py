"""The gate on a processor that no baseline knows: unchanged cells are green, and their verdicts say so."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.baselines.baseline import read_convergence, write_convergence
from nightjar_ci.night.matrix import expand, read_matrix
from tests.contract.test_gates_can_fail import BASELINES, run_night
from tests.places import ROOT

CELLS = ("gpt_tiny-late-cpu-f32-dp1", "gpt_tiny-train-cpu-bf16-dp1")
LEVEL = "SSE4_2"  # which every x86 processor has, and for which none computes when left alone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]


@pytest.mark.skipif(
    "sse4_2" not in (read_machine("current", None).cpu.instructions or ()), reason="not an x86 processor"
)
def test_cells_are_green_with_instructions_that_no_baseline_knows(tmp_path: Path, compiled: dict[str, str]) -> None:
    jobs = {job.cell: list(job.command) for job in expand(read_matrix(ROOT / "ci" / "matrix" / "nightly-cpu.toml"))}
    for cell in CELLS:
        baseline = read_convergence(BASELINES, cell)
        assert baseline is not None
        shutil.copytree(BASELINES / cell, tmp_path / "baselines" / cell)
        others = [there for there in baseline.elsewhere if LEVEL not in (there.environment.processor or "")]
        write_convergence(tmp_path / "baselines", baseline.model_copy(update={"elsewhere": tuple(others)}))
    code, verdicts = run_night(
        tmp_path,
        {cell: jobs[cell] for cell in CELLS},
        baselines=str(tmp_path / "baselines"),
        **{**compiled, "XLA_FLAGS": f"--xla_cpu_max_isa={LEVEL}"},
    )
    curves = {series: status for (judge, series), status in verdicts.items() if judge == "convergence"}
    assert set(curves) == {f"{cell}/{curve}" for cell in CELLS for curve in ("loss", "eval_loss")}
    assert set(curves.values()) == {"ok"}
    assert code == 0
    written = json.loads((tmp_path / "night" / "verdicts.json").read_text())["verdicts"]
    said = [verdict["explanation"] for verdict in written if verdict["series"] == f"{CELLS[1]}/loss"]
    known = [there for there in others if there.environment.packages["jaxlib"] == version("jaxlib")]
    shows_how_far_processors_differ = len(known) > 1
    assert ("The baseline does not know this processor" in said[0]) == shows_how_far_processors_differ
