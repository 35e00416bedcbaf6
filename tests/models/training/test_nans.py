"""A number that is not finite is traced to the operation and the layer that made it."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets.config import override
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.training.idioms import make_program
from nightjar_models.training.nans import find_first
from nightjar_models.training.tasks import find_task
from nightjar_models.training.train import train
from tests.models.conftest import SMALL, draw_all_but_parameters
from tests.models.parallel.eight_meshes import make_batch, tiny


def layers(x: jax.Array) -> jax.Array:
    """Roots of what is left; the third layer takes too much."""

    def layer(carry: jax.Array, taken: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sqrt(carry - taken), None

    with jax.named_scope("layers"):
        return jax.lax.scan(layer, x, jnp.array([0.0, 0.0, 3.0]))[0].sum()


def test_the_layer_of_a_scan_is_named() -> None:
    found = find_first(layers, jnp.full(2, 2.0))
    assert found is not None
    assert found.startswith("sqrt at ")
    assert found.endswith(", in layers.2")
    assert find_first(layers, jnp.full(2, 1e4)) is None


def test_a_gradient_that_is_not_finite_is_found_behind_a_finite_value() -> None:
    def masked(x: jax.Array) -> jax.Array:
        with jax.named_scope("layers.1"):
            rooted: jax.Array = jax.checkpoint(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))(x).sum()
            return rooted

    assert find_first(masked, jnp.zeros(2)) is None
    assert "transpose" in (find_first(jax.value_and_grad(masked), jnp.zeros(2)) or "")


@pytest.mark.parametrize(
    ("preset", "parameter", "layer"),
    [
        ("gpt_tiny", "blocks.1.feed_forward.linear_in.kernel", r"jvp\(layers\.1\)"),
        pytest.param("diffusion_tiny", "middle.second.kernel", r"jvp\(middle\)", marks=pytest.mark.weekly),
        ("vae_tiny", "decoder.layers.0.kernel", r"jvp\(decoder\)/layers\.0"),
    ],
)
def test_an_overflow_in_a_middle_layer_is_named(preset: str, parameter: str, layer: str) -> None:
    config = tiny(preset, *(["model.layers=3"] if preset == "gpt_tiny" else []))
    task = find_task(config)
    program = make_program(config, task, make_mesh(MeshShape()))
    tree = draw_all_but_parameters(program)
    rng = np.random.default_rng(0)
    for path, variable in nnx.to_flat_state(tree):
        name = ".".join(map(str, path))
        if isinstance(variable, nnx.Param):
            values = np.clip(rng.normal(size=variable.shape) / 4, -1, 1).astype(np.float32)
            # finite, but no product with it
            variable.set_value(jnp.asarray(values * np.float32(3e38) if name == f"0.{parameter}" else values))
    found = find_first(program.gradient, tree, make_batch(config))
    assert re.fullmatch(rf"\w+ at \w+\.py:\d+, in {layer}(/.*)?", found or "")


def test_loops_and_conditions_are_entered() -> None:
    def halved(x: jax.Array) -> jax.Array:
        with jax.named_scope("search"):
            left: jax.Array = jax.lax.while_loop(lambda x: x[0] < 4, lambda x: x + jnp.log(x - 2), x)
            return left

    def chosen(x: jax.Array) -> jax.Array:
        with jax.named_scope("choice"):
            taken: jax.Array = jax.lax.cond(x[0] > 0, jnp.log, lambda x: x, x - 1)
            return taken

    assert (find_first(halved, jnp.ones(1)) or "").partition(" at ")[0] == "log"
    assert (find_first(chosen, jnp.ones(1)) or "").endswith(", in choice")
    assert find_first(chosen, jnp.zeros(1)) is None


@pytest.mark.slow
def test_a_diverging_run_says_where_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = override(gpt_tiny(), [*SMALL, "steps=12", "learning_rate=1e30"])
    run = train(config, seed=0, mesh=MeshShape(), out=tmp_path, checkpoint_every=1, debug_nans=True)
    assert run.status == "diverged"
    assert re.fullmatch(r"\w+ at \w+\.py:\d+(, in .+)?", run.config["first_not_finite"])
    kept = [int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(kept) == run.curves[0].steps[-1]  # the state before the step that failed
