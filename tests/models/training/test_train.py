"""Training is reproducible, continues bit for bit, and learns."""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

from nightjar_models.commands.train import keep_programs
from nightjar_models.data.pipeline import train_batches
from nightjar_models.errors import InputError
from nightjar_models.measuring.result import Run
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets.config import TrainConfig, override
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.training.idioms import make_program
from nightjar_models.training.progress import Progress
from nightjar_models.training.step import find_quick_options
from nightjar_models.training.tasks import find_task
from nightjar_models.training.train import train
from tests.models.conftest import SMALL, USUAL_COMPILE

ONE = MeshShape()


def curve(run: Run, name: str = "loss") -> list[float]:
    return next(found.values for found in run.curves if found.name == name)


def list_parameters(model: nnx.Module) -> dict[str, Any]:
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): np.asarray(variable[...]) for path, variable in flat}


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    return override(gpt_tiny(), [*SMALL, "steps=8", "schedule_steps=8", "warmup_steps=2"])


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Lets JAX load programs from this folder and keep them there, and not where tests keep theirs."""
    names = ("compilation_cache_dir", "persistent_cache_min_compile_time_secs", "persistent_cache_enable_xla_caches")
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    compilation_cache.reset_cache()
    keep_programs(folder)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)  # type: ignore[no-untyped-call]
        compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def whole(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight steps at a stretch, of a program that is compiled here."""
    with keeping(tmp_path_factory.mktemp("programs")):
        return train(config, seed=0, mesh=ONE, out=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def part(config: TrainConfig, folder: Path) -> list[float]:
    """The losses of a run that is interrupted after six steps; the folder holds the checkpoint after the fourth."""
    losses: list[float] = []

    def interrupt(step: int, loss: float) -> None:
        losses.append(loss)
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, seed=0, mesh=ONE, out=folder, checkpoint_every=4, progress=Progress(step=interrupt))
    return losses


@pytest.mark.slow
def test_the_same_seed_gives_a_bit_equal_curve(config: TrainConfig, whole: Run, tmp_path: Path) -> None:
    again = train(config, seed=0, mesh=ONE, out=tmp_path)
    assert curve(again) == curve(whole)
    assert curve(again, "eval_loss") == curve(whole, "eval_loss")
    assert again.facts == whole.facts
    assert not (tmp_path / "checkpoints").exists()


def test_another_seed_starts_from_other_parameters(config: TrainConfig) -> None:
    program = make_program(config, find_task(config), make_mesh(ONE))
    zero, again, one = (list_parameters(program.model(program.initialize(seed))) for seed in (0, 0, 1))
    assert all(np.array_equal(zero[name], again[name]) for name in zero)
    drawn = [name for name in zero if zero[name].any() and not (zero[name] == 1).all()]
    assert len(drawn) >= 6
    assert all(not np.array_equal(zero[name], one[name]) for name in drawn)


@pytest.mark.slow
def test_parameters_have_the_bits_that_full_optimisation_gives_them(config: TrainConfig) -> None:
    program = make_program(config, find_task(config), make_mesh(ONE))
    options = find_quick_options(program.mesh)
    assert options["xla_backend_optimization_level"] < 3
    draw = program.initializer.lower(0)
    quick, slow = (
        jax.device_get(jax.tree.leaves(draw.compile(USUAL_COMPILE | levels)(0)))
        for levels in (options, {"xla_backend_optimization_level": 3})
    )
    assert all(np.array_equal(a, b) for a, b in zip(quick, slow, strict=True))


def test_an_evaluation_of_many_batches_is_compiled_once(config: TrainConfig) -> None:
    program = make_program(config, find_task(config), make_mesh(ONE))
    state, compiled = program.initialize(0), []
    batches = [{"tokens": np.full((8, 17), number, np.int32)} for number in range(3)]
    program.evaluate(state, batches[:1])  # which compiles small operations, too

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    def count(batches: list[dict[str, Any]]) -> int:
        compiled.clear()
        program.evaluate(state, batches)
        return len(compiled)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        assert count(batches) == count(batches[:1]) > 0
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_the_users_level_of_optimisation_is_that_of_parameters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    level = "xla_backend_optimization_level"
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert find_quick_options(make_mesh(ONE)) == {level: 1}
    monkeypatch.setenv("XLA_FLAGS", f"--{level}=0")
    assert find_quick_options(make_mesh(ONE)) == {}


def test_a_run_has_every_measure_of_the_format(whole: Run) -> None:
    assert [(found.name, found.steps) for found in whole.curves] == [("loss", list(range(8))), ("eval_loss", [8])]
    samples = {found.name: found for found in whole.samples}
    assert samples.keys() == {
        "step_time",
        "throughput",
        "input_wait",
        "flop_rate",
        "dispatch_time",
        "trace_time",
        "lower_time",
        "compile_time",
        "peak_memory",
    }
    assert (len(samples["step_time"].values), samples["step_time"].warmup) == (8, 5)
    steady = samples["step_time"].values[5:]
    assert 0 <= samples["input_wait"].values[0] < 1
    assert samples["throughput"].values == [pytest.approx(8 * 16 * 3 / sum(steady))]
    assert [found["program"] for found in whole.facts] == ["train_step"]


@pytest.mark.slow
def test_a_loaded_step_has_no_compile_time_and_is_the_same(config: TrainConfig, tmp_path: Path) -> None:
    with keeping(tmp_path / "programs"):
        runs = [train(config, seed=0, mesh=ONE, out=tmp_path / name) for name in ("first", "second")]
    first, second = ({sample.name for sample in run.samples} for run in runs)
    assert first - second == {"compile_time", "peak_memory"}
    assert runs[0].curves == runs[1].curves
    assert runs[0].facts == runs[1].facts
    assert len(list((tmp_path / "programs").glob("jit_train_step-*-cache"))) == 1


def test_a_resumed_run_continues_bit_equal(
    config: TrainConfig, part: list[float], whole: Run, folder: Path, tmp_path: Path
) -> None:
    assert part == curve(whole)[:6]
    shutil.copytree(folder, tmp_path / "copy")
    done: list[int] = []
    seen = Progress(step=lambda step, loss: done.append(step))
    resumed = train(config, seed=0, mesh=ONE, out=tmp_path / "copy", progress=seen)
    assert done == [5, 6, 7, 8]
    assert curve(resumed) == curve(whole)
    assert curve(resumed, "eval_loss") == curve(whole, "eval_loss")


def test_a_short_run_is_a_prefix_of_a_long_one(config: TrainConfig) -> None:
    # The learning rate depends on the schedule's length, never on how many of its steps are run.
    task, mesh = find_task(config), make_mesh(ONE)
    long, short = (make_program(dataclasses.replace(config, steps=steps), task, mesh) for steps in (8, 3))
    batch = {"tokens": jax.ShapeDtypeStruct((8, 17), np.int32)}  # type: ignore[no-untyped-call]
    assert long.lower(batch).as_text() == short.lower(batch).as_text()


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize(
    ("seed", "nudged", "steps", "message"),
    [
        (1, False, 8, "holds a checkpoint with seed 0, expected 1"),
        (0, True, 8, "holds a checkpoint with nudged False, expected True"),
        (0, False, 2, "holds a checkpoint of step 4, expected at most 2"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    config: TrainConfig, folder: Path, seed: int, nudged: bool, steps: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(dataclasses.replace(config, steps=steps), seed=seed, mesh=ONE, out=folder, nudged=nudged)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize(
    ("own", "other", "message"),
    [
        ('"format": 2', '"format": 9', "checkpoints/4: holds a checkpoint of format 9, expected 2"),
        ('"seed": 0', '"seed": 0, "compute.dtype": "bf16"', "with compute.dtype 'bf16', expected 'f32'"),
        ('"seed": 0', '"seed": 0, "data.loader": "sampler"', "with data.loader 'sampler', expected 'map'"),
        ('"seed": 0', '"seed": 0, "first_step": 2', "with first_step 2, expected 0"),
        ('"nudged": false', '"nudged": true', "with nudged True, expected False"),
    ],
)
def test_a_checkpoint_of_another_format_or_with_another_setting_is_refused(
    config: TrainConfig, folder: Path, tmp_path: Path, own: str, other: str, message: str
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    about = tmp_path / "copy" / "checkpoints" / "4" / "about" / "metadata"
    about.write_text(about.read_text().replace(own, other))
    with pytest.raises(InputError, match=message):
        train(config, seed=0, mesh=ONE, out=tmp_path / "copy")


@pytest.mark.usefixtures("part")
def test_a_damaged_checkpoint_is_refused(config: TrainConfig, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    saved = tmp_path / "copy" / "checkpoints" / "4"
    for path in (saved / "state").rglob("*"):
        if path.is_file() and path.stat().st_size > 10_000:
            path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"checkpoints/4: the checkpoint cannot be read"):
        train(config, seed=0, mesh=ONE, out=tmp_path / "copy")
    (saved / "about" / "metadata").write_text("{")
    with pytest.raises(InputError, match=r"checkpoints/4: the checkpoint cannot be read"):
        train(config, seed=0, mesh=ONE, out=tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("lost", ["state", pytest.param("about", marks=pytest.mark.weekly)])  # copied in part
def test_a_run_continues_from_the_checkpoint_before_a_damaged_one(
    config: TrainConfig, folder: Path, tmp_path: Path, lost: str
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(folder, out)
    whole = train(config, seed=0, mesh=ONE, out=out, checkpoint_every=4)
    shutil.rmtree(out / "checkpoints" / "8" / lost)
    said: list[str] = []
    again = train(config, seed=0, mesh=ONE, out=out, checkpoint_every=4, progress=Progress(phase=said.append))
    assert any("checkpoints/8: the checkpoint cannot be read" in line for line in said)
    assert any(line.endswith("Continuing from step 4") for line in said)
    assert curve(again) == curve(whole)
    done: list[int] = []
    train(config, seed=0, mesh=ONE, out=out, progress=Progress(step=lambda step, _: done.append(step)))
    assert done == []  # the eighth step was saved once more


@pytest.mark.slow
def test_nudged_parameters_train_the_same_up_to_rounding(config: TrainConfig, whole: Run, tmp_path: Path) -> None:
    again = train(config, seed=0, mesh=ONE, out=tmp_path, nudged=True)
    # Float32 sums over a batch of 4 x 16 positions; whether any loss changes depends on the processor.
    assert curve(again) == pytest.approx(curve(whole), rel=1e-5)
    program = make_program(config, find_task(config), make_mesh(ONE))
    plain, nudged = (program.model(program.initialize(0, nudged)) for nudged in (False, True))
    for name, values in list_parameters(plain).items():
        moved = list_parameters(nudged)[name]
        assert ((moved != values) == (values != 0)).all()


@pytest.mark.slow
def test_a_late_start_trains_on_the_data_of_its_step(config: TrainConfig, tmp_path: Path) -> None:
    late = train(dataclasses.replace(config, first_step=6), seed=0, mesh=ONE, out=tmp_path)
    assert [(found.name, found.steps) for found in late.curves] == [("loss", [6, 7]), ("eval_loss", [8])]
    task = find_task(config)
    program = make_program(config, task, make_mesh(ONE))
    batches = train_batches(task.read(), config.batch_size, 0)
    seventh = [next(batches) for _ in range(7)][-1]
    loss, _ = jax.jit(program.gradient)(program.save(program.initialize(0)), seventh)
    assert curve(late)[0] == pytest.approx(float(loss), rel=1e-5)


def test_a_first_step_behind_the_last_is_refused(config: TrainConfig) -> None:
    with pytest.raises(InputError, match=r"first_step: expected fewer than steps \(8\), found 8"):
        override(config, ["first_step=8"])


@pytest.mark.slow
def test_a_diverging_run_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = override(gpt_tiny(), [*SMALL, "steps=12", "learning_rate=1e30"])
    run = train(config, seed=0, mesh=MeshShape(), out=tmp_path, checkpoint_every=1)
    assert run.status == "diverged"
    kept = [int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(kept) == run.curves[0].steps[-1]  # the state before the step that failed
