"""The guide's own matrices gate programs that write MaxText's and Levanter's lines, from the log to the verdict."""

import re
import sys
from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import write_baselines
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.night_folder import job_folder, read_night, read_result
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.verdict import NightVerdicts
from nightjar_ci.gate.baseline_runs import read_cells
from nightjar_ci.gate.gate import find_exit_code, gate_night
from nightjar_ci.night.matrix import Matrix, expand, read_matrix
from nightjar_ci.night.run import run_night
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from noxfile import ROOT

GUIDE = (ROOT / "docs" / "gate-any-program.md").read_text()
MATRICES = {
    found[1]: block
    for block in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    if (found := re.search(r'^name = "(\w+)"', block, re.MULTILINE))
}
POLICIES = 'schema = "nightjar.policies/1"\n[[convergence]]\ncurve = "loss"\n'
TRAINER = """
import json, math, random, sys
kind, seed, fault = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
noise = random.Random(seed)
logger = "2026-11-21T03:00:05 - 0 - levanter.json_logger - json_logger.py:66 - INFO :: "
print("I1121 03:00:00.000000 123 compiling", flush=True)
for step in range(60):
    loss = 2 + 8 * math.exp(-step / 20) + noise.gauss(0, 0.02) + fault * step / 60
    seconds = 9.0 if step == 0 else noise.gauss(0.41, 0.004)
    if kind == "maxtext":
        print(f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {8.8 / seconds:.3f}, "
              f"Tokens/s/device: {2048 / seconds:.3f}, total_weights: 16384, loss: {loss:.3f}")
    else:
        for metrics in ({"train/loss": loss, "train/learning_rate": 3e-4}, {"throughput/duration": seconds}):
            text = json.dumps({"tracker": "json_logger", "event": "log", "step": step, "metrics": metrics})
            print(logger + text, file=sys.stderr)
if kind == "levanter":
    end = {"tracker": "json_logger", "event": "finish", "summary": {"train/loss": 0.0}}
    print(logger + json.dumps(end), file=sys.stderr)
"""


def matrix_of(tmp_path: Path, kind: str, fault: float) -> Matrix:
    """The guide's matrix with our trainer as its command, ten seeds of it."""
    path, trainer = tmp_path / f"{kind}.toml", tmp_path / "trainer.py"
    write_text(path, MATRICES[kind])
    write_text(trainer, TRAINER)
    matrix = read_matrix(path)
    (entry,) = matrix.job
    command = (sys.executable, str(trainer), kind, "{seed}", str(fault))
    changes = {"command": command, "seeds": tuple(range(10))}
    return matrix.model_copy(update={"job": (entry.model_copy(update=changes),)})


def run_and_gate(tmp_path: Path, matrix: Matrix, night: str) -> tuple[int, NightVerdicts]:
    folder = tmp_path / night
    jobs = [job for job in expand(matrix) if job.seed < 3]
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}))
    write_text(tmp_path / "policies.toml", POLICIES)
    run_night(matrix, folder, jobs=jobs, store=store)
    verdicts = gate_night(
        read_night_results(folder), read_policies(tmp_path / "policies.toml"), tmp_path / "baselines", store
    )
    store.close()
    return find_exit_code(read_night_results(folder), verdicts), verdicts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maxtext", "levanter"])
def test_a_program_is_gated_by_its_own_log(tmp_path: Path, kind: str) -> None:
    good = matrix_of(tmp_path, kind, 0.0)
    run_night(good, tmp_path / "seeds")
    for cell in read_cells(tmp_path / "seeds"):
        assert cell.failed == ()
        write_baselines(tmp_path / "baselines", cell.cell, cell.command, cell.records, facts_only=False)
    code, verdicts = run_and_gate(tmp_path, good, "2026-11-21T0300-0001")
    assert (code, [verdict.status for verdict in verdicts.verdicts]) == (0, ["ok"])
    (outcome, *_) = read_night(tmp_path / "seeds").jobs
    record = read_result(job_folder(tmp_path / "seeds", outcome.job))
    assert record is not None
    (loss,), samples = record.curves, {sample.name: sample for sample in record.samples}
    assert loss.steps == tuple(range(60))
    assert 0.38 < min(samples["step_time"].steady) < max(samples["step_time"].steady) < 0.44
    code, verdicts = run_and_gate(tmp_path, matrix_of(tmp_path, kind, 0.4), "2026-11-21T0300-0002")
    assert (code, [verdict.status for verdict in verdicts.verdicts]) == (1, ["regressed"])


def test_every_matrix_of_the_guide_is_valid(tmp_path: Path) -> None:
    assert set(MATRICES) == {"mine", "maxtext", "levanter", "benchmarks"}
    for name, text in MATRICES.items():
        write_text(tmp_path / f"{name}.toml", text)
        assert all(job.adapter is not None for job in expand(read_matrix(tmp_path / f"{name}.toml")))


def test_ten_lines_are_ten_lines() -> None:
    lines = [line for line in MATRICES["mine"].splitlines() if line.strip()]
    assert len(lines) - len(['schema = ..."', 'name = ..."']) <= 10


def test_the_lines_that_the_guide_quotes_are_matched_by_its_patterns() -> None:
    quoted = re.findall(r"```text\n(.*?)\n```", GUIDE, re.DOTALL)
    patterns = re.findall(r"^pattern = '(.*?)'", GUIDE, re.MULTILINE)
    assert len(quoted) == 2
    for line, pattern in zip(quoted, patterns[-2:], strict=True):
        assert re.search(pattern, line)


def test_a_job_whose_log_cannot_be_read_is_invalid_and_says_where(tmp_path: Path) -> None:
    matrix = matrix_of(tmp_path, "maxtext", 0.0)
    (entry,) = matrix.job
    line = "completed step: 1, seconds: n/a, TFLOP/s/device: 1, Tokens/s/device: 1, total_weights: 1, loss: 1"
    changes = {"command": (sys.executable, "-c", f"print({line!r})"), "seeds": None}
    night = run_night(matrix.model_copy(update={"job": (entry.model_copy(update=changes),)}), tmp_path / "night")
    (outcome,) = night.jobs
    assert outcome.state == "invalid"
    assert "stdout.log:1: step_time is 'n/a', expected a number" in (outcome.message or "")
