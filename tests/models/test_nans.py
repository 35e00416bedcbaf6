"""A number that is not finite is traced to the operation and the layer that made it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp

from nightjar_models.config import override
from nightjar_models.mesh import MeshShape
from nightjar_models.nans import find_first
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.train import train
from tests.models.conftest import SMALL


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


def test_a_diverging_run_says_where_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = override(gpt_tiny(), [*SMALL, "steps=12", "learning_rate=1e30"])
    run = train(config, seed=0, mesh=MeshShape(), out=tmp_path, checkpoint_every=1, debug_nans=True)
    assert run.status == "diverged"
    assert " at " in run.config["first_not_finite"]
    kept = [int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]
    assert kept == [run.curves[0].steps[-1]]  # the state before the step that failed
