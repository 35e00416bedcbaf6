"""What a program of any idiom offers beside its step."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override
from nightjar_models.training import step
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from tests.models.conftest import SMALL


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
