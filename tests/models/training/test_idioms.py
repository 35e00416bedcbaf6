"""Each way to write the training loop has the losses of the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import CHOICES, override
from nightjar_models.training import step
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from tests.models.conftest import SMALL, run_steps

STEPS = 5


def train(idiom: str) -> tuple[list[float], dict[str, float]]:
    config = override(find_preset("gpt_tiny")(), [*SMALL, "warmup_steps=1", f"idiom={idiom}"])
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    rng = np.random.default_rng(0)
    batches = [{"tokens": rng.integers(0, 256, (8, 17), dtype=np.int32)} for _ in range(STEPS)]
    state, losses = run_steps(program, batches)
    assert program.is_finite(state)
    return losses, program.evaluate(state, batches[:1])


@pytest.fixture(scope="module")
def usual() -> tuple[list[float], dict[str, float]]:
    return train("nnx")


@pytest.mark.parametrize("idiom", [idiom for idiom in CHOICES["idiom"] if idiom != "nnx"])
@pytest.mark.slow
def test_an_idiom_has_the_losses_of_nnx(idiom: str, usual: tuple[list[float], dict[str, float]]) -> None:
    losses, scores = train(idiom)
    assert losses == pytest.approx(usual[0], rel=1e-5)  # float32 sums over 128 positions in another order
    assert scores == pytest.approx(usual[1], rel=1e-5)
    assert losses[-1] != pytest.approx(losses[1], rel=1e-4)  # it did learn something to be compared


@pytest.mark.parametrize(
    ("preset", "settings", "said"),
    [
        ("gpt_tiny", ["idiom=pure", "model.dropout=0.1"], "idiom=pure: expected a GPT without dropout, found gpt_tiny"),
        ("gpt_tiny", ["idiom=linen", "compute.dtype=bf16"], "idiom=linen: expected compute.dtype f32, found bf16"),
        ("gpt_tiny", ["idiom=linnen"], "idiom: expected one of nnx, split, linen, pure, shard_map, found 'linnen'"),
        ("llama_tiny", ["idiom=linen"], r"expected a GPT without dropout, found llama_tiny\. Hint: nnx and split"),
    ],
)
def test_what_an_idiom_cannot_do_is_said(preset: str, settings: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        prepare(preset, settings)


def prepare(preset: str, settings: list[str]) -> None:
    config = override(find_preset(preset)(), settings)
    make_program(config, find_task(config), make_mesh(MeshShape()))


@pytest.mark.parametrize("on_cpus", [True, False], ids=["read in place", "computed"])
def test_a_single_parameter_that_is_not_finite_is_noticed(monkeypatch: pytest.MonkeyPatch, on_cpus: bool) -> None:
    config = override(find_preset("gpt_tiny")(), [*SMALL, "compute.dtype=bf16"])
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    state = program.initialize(0)
    monkeypatch.setattr(step, "_is_on_cpus", lambda mesh: on_cpus)
    assert program.is_finite(state)
    parameters, layout = jax.tree.flatten(nnx.state(program.model(state), nnx.Param))
    parameters[3] = parameters[3].at[0].set(jnp.inf)
    nnx.update(program.model(state), jax.tree.unflatten(layout, parameters))
    assert not program.is_finite(state)
