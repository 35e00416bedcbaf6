"""The command answers with a result, or with a message and an exit code that tell whose fault it is."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.formats.run_record import read_run
from tests.models.conftest import SMALL_OPTIONS, Command, run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("single")


@pytest.fixture(scope="module")
def single(folder: Path, compiled: dict[str, str]) -> subprocess.CompletedProcess[str]:
    options = [*SMALL_OPTIONS, "--steps", "6", "--out", "out"]
    return run_command(
        folder, "train", "gpt_tiny", *options, compiled=compiled, NIGHTJAR_SEED="7", NIGHTJAR_JOB="job-s7"
    )


@pytest.mark.slow
def test_a_run_leaves_a_result_that_ci_reads(single: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert single.returncode == 0, single.stderr
    assert single.stdout.splitlines()[-1] == "out/result.json"
    said = ["reading the data", "initialising the parameters", "compiling the train step", "step 6/6", "evaluating "]
    places = [single.stderr.index(one) for one in said]
    assert places == sorted(places)
    run = read_run(folder / "out" / "result.json")
    assert (run.job, run.workload, run.status, run.seed) == ("job-s7", "gpt_tiny", "completed", 7)
    assert len(str(run.config["data_digest"])) == 16
    assert run.environment.facts_key.endswith("-cpu-x1")
    assert run.facts[0].opcodes["fusion"].count > 0
    assert run.facts[0].collectives == {}


@pytest.mark.slow
def test_a_sharded_run_has_the_curve_of_a_single_device(
    single: subprocess.CompletedProcess[str], folder: Path, nightjar_models: Command
) -> None:
    options = [*SMALL_OPTIONS, "--steps", "6", "--seed", "7", "--out", "out", "--json", "--mesh", "dp2.fsdp2.tp2"]
    variables = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    sharded = nightjar_models("train", "gpt_tiny", *options, **variables)  # what is in the cache warns of nothing
    assert sharded.returncode == 0, sharded.stderr
    assert "full rematerialization" not in sharded.stderr
    one, eight = json.loads((folder / "out" / "result.json").read_text()), json.loads(sharded.stdout)
    assert eight["job"] == "gpt_tiny-train-cpu-f32-dp2.fsdp2.tp2-s7"
    # Eight devices add float32 numbers in another order: 1.4e-6 at most was seen in 300 steps of three seeds.
    assert eight["curves"][0]["values"] == pytest.approx(one["curves"][0]["values"], rel=1e-5)
    assert len(eight["environment"]["devices"]) == 8
    assert eight["environment"]["flags"]["XLA_FLAGS"].startswith("--xla_cpu_enable_fast_math=false ")
    assert eight["facts"][0]["collectives"]["all-reduce"]["count"] > 0


@pytest.mark.slow
def test_a_diverged_run_writes_its_curve_and_ends_with_3(called: Command, tmp_path: Path) -> None:
    answer = called(
        *("train", "gpt_tiny", *SMALL_OPTIONS, "--steps", "20", "--set", "learning_rate=1e30", "--out", "out")
    )
    assert answer.returncode == 3
    run = read_run(tmp_path / "out" / "result.json")
    assert run.status == "diverged"
    assert [curve.name for curve in run.curves] == ["loss"]
    last = run.curves[0].steps[-1]
    assert last < 19
    assert [math.isfinite(value) for value in run.curves[0].values] == [True] * last + [False]
    assert f"the loss of step {last} is" in answer.stderr
    assert "Hint: lower learning_rate" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "gtp_tiny", "--out", "o"], "error: unknown preset 'gtp_tiny'"),
        (["train", "gpt_tiny", "--set", "modl.layers=3", "--out", "o"], "Hint: did you mean 'model.layers'?"),
        (["train", "gpt_tiny", "--mesh", "dp2.xp2", "--out", "o"], "--mesh dp2.xp2: part 'xp2'"),
        (["train", "gpt_tiny"], "expected --out or NIGHTJAR_OUT"),
        (["train", "gpt_tiny", "--steps", "0", "--out", "o"], "--steps"),
        (["presets", "vit_tine"], "Hint: did you mean 'vit_tiny'?"),
    ],
)
def test_bad_usage_trains_nothing(called: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    answer = called(*arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "o").exists()


def test_a_mesh_that_does_not_fit_the_model_ends_with_2(nightjar_models: Command) -> None:
    answer = nightjar_models("train", "gpt_tiny", *SMALL_OPTIONS, "--mesh", "tp4", "--out", "o")
    assert answer.returncode == 2
    assert (
        ": blocks.0.attention.key.bias (2, 8) has a side of 2, expected a multiple of the mesh's tensor (4)"
        in answer.stderr
    )


def test_a_folder_that_cannot_be_written_ends_with_3_before_training(called: Command) -> None:
    answer = called("train", "gpt_tiny", "--out", "/proc/nightjar")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr.startswith("error: /proc/nightjar: cannot be written:")
    assert "step" not in answer.stderr


@pytest.mark.parametrize(("limit", "place"), [(0, "out"), (1, "out/result.json")])
@pytest.mark.slow
def test_a_full_disk_leaves_no_half_result(nightjar_models: Command, tmp_path: Path, limit: int, place: str) -> None:
    # A limit on the size of files fails a write as a full disk does: at once, or when the result is larger than 1 KiB.
    answer = nightjar_models("train", "gpt_tiny", *SMALL_OPTIONS, "--steps", "2", "--out", "out", limit=limit)
    assert answer.returncode == 3
    assert f"error: {place}: cannot be written: File too large." in answer.stderr
    assert "Hint: free some space" in answer.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_ends_with_3(nightjar_models: Command) -> None:
    options = ["--steps", "4", "--checkpoint-every", "2", "--out", "out"]
    answer = nightjar_models("train", "gpt_tiny", *SMALL_OPTIONS, *options, limit=1)
    assert answer.returncode == 3
    assert "out/checkpoints: the checkpoint cannot be written" in answer.stderr


def test_debug_prints_the_traceback(called: Command) -> None:
    assert "Traceback" in called("--debug", "presets", "vit_tine").stderr


def test_presets_are_listed_and_shown(called: Command) -> None:
    assert called("presets").stdout.split()[0] == "gpt_tiny"
    assert "learning_rate" in called("presets", "vit_tiny").stdout
    assert json.loads(called("presets", "--json").stdout)["gpt_tiny"]["model.layers"] == 2


def test_help_needs_no_jax(nightjar_models: Command, tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise RuntimeError('jax was imported')")
    for command in ("train", "presets"):
        answer = nightjar_models(command, "--help", PYTHONPATH=str(tmp_path))
        assert answer.returncode == 0, answer.stderr
        assert "Example: nightjar-models" in answer.stdout


def test_a_reader_that_went_away_leaves_the_exit_code() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    words = [sys.executable, "-m", "nightjar_models", "presets"]
    done = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


def test_fewer_steps_than_the_first_are_wrong_input(called: Command, tmp_path: Path) -> None:
    words = ("train", "vae_tiny", "--set", "first_step=250", "--steps", "100", "--out", str(tmp_path / "out"))
    done = called(*words)
    assert (done.returncode, "first_step: expected fewer than steps (100)" in done.stderr) == (2, True)
