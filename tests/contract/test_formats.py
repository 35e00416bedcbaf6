"""The packages meet in files: what one writes the other reads, and what the documents show is what is read."""

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.errors import InputError
from nightjar_ci.formats.profile import Profile
from nightjar_ci.formats.run_record import Cpu, RunRecord, read_run
from nightjar_ci.images.publish.support import CAPABILITY_FLOORS, DRIVER_FLOORS
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_models.doctor import checks
from nightjar_models.measuring.environment import read_cpu
from nightjar_profiling.report.analyse import Profile as WrittenProfile
from tests.places import ROOT

REFERENCE = ROOT / "docs" / "reference"


def fenced(page: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (REFERENCE / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_result_is_read(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(fenced("run-result.md", "json"))
    record = read_run(tmp_path / "result.json")
    assert record.workload == "demo"
    assert record.environment.facts_key == "jaxlib-0.10.2-cpu-x1"


def test_every_documented_key_of_a_result_is_required(tmp_path: Path) -> None:
    whole = json.loads(fenced("run-result.md", "json"))
    for key in whole:
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        with pytest.raises(InputError, match=key):
            read_run(path)


def test_the_documented_matrix_expands(tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text(fenced("matrix.md", "toml"))
    jobs = expand(read_matrix(tmp_path / "matrix.toml"))
    assert {job.cell for job in jobs} == {f"gpt_tiny-train-cpu-f32-{mesh}" for mesh in ("dp1", "dp2.fsdp2.tp2", "dp8")}
    assert sorted(job.id for job in jobs)[0] == "gpt_tiny-train-cpu-f32-dp1-s0"
    assert len(jobs) == 9


def test_the_gate_knows_each_key_of_a_profile() -> None:
    written = {field.name for field in dataclasses.fields(WrittenProfile)} | {"schema"}
    assert written == {field.alias or name for name, field in Profile.model_fields.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("trained")
    command = ["train", "gpt_tiny", "--steps", "4", "--seed", "7", "--out", str(folder)]
    program = [sys.executable, "-m", "nightjar_models", *command]
    environ = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}  # a step that is loaded has no compile_time
    subprocess.run(program, check=True, capture_output=True, timeout=1500, env=environ)
    return read_run(folder / "result.json")


@pytest.mark.slow
def test_a_trained_model_leaves_the_measures_that_the_gates_judge(trained: RunRecord) -> None:
    assert trained.status == "completed"
    assert trained.seed == 7
    loss, step_time = trained.curve("loss"), trained.sample("step_time")
    assert loss is not None
    assert len(loss.values) == 4
    assert step_time is not None
    assert len(step_time.values) == 4
    measured = {sample.name: sample for sample in trained.samples}
    assert {"step_time", "throughput", "compile_time", "peak_memory"} <= set(measured)
    assert measured.pop("input_wait").values[0] >= 0  # none where the batch was there before the step had ended
    assert all(value > 0 for sample in measured.values() for value in sample.values)
    assert "data_digest" in trained.config


@pytest.mark.slow
def test_a_trained_model_leaves_the_facts_of_its_compiled_program(trained: RunRecord) -> None:
    (facts,) = [facts for facts in trained.facts if facts.program == "train_step"]
    assert facts.opcodes["dot"].count > 10
    assert sum(tally.count for tally in facts.fusions.values()) == facts.opcodes["fusion"].count
    assert facts.collectives == {}
    assert facts.flops is not None
    assert facts.flops > 1e8
    assert (facts.memory.temp_bytes or 0) > 0
    assert trained.environment.packages["jaxlib"] in trained.environment.facts_key


def test_a_workload_and_an_adapter_name_the_processor_of_this_machine_alike() -> None:
    cpu = Cpu.model_validate(read_cpu())
    assert cpu == read_machine("current", None).cpu
    if platform.machine() in ("x86_64", "aarch64") and Path("/proc/cpuinfo").exists():
        assert cpu.architecture
        assert cpu.instructions


def test_driver_floors_are_the_same_and_no_image_is_for_a_gpu_that_jax_has_dropped() -> None:
    assert {number: str(floor[0]) for number, floor in checks.DRIVER_FLOORS.items()} == DRIVER_FLOORS
    of_jax = {number: 10 * major + minor for number, (major, minor) in checks.OLDEST_CAPABILITIES.items()}
    assert all(CAPABILITY_FLOORS[number] >= oldest for number, oldest in of_jax.items())  # an image has cuDNN as well
