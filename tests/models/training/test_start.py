"""A nudge moves each float by one unit in the last place; a later start moves the optimizer's counters alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import find_preset
from nightjar_models.training.idioms import make_program
from nightjar_models.training.start import nudge, start_at
from nightjar_models.training.tasks import find_task


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_float_moves_by_one_unit_up_or_down(dtype: str) -> None:
    values = jnp.asarray(np.random.default_rng(1).normal(0, 1, 1000), dtype)
    nudged = nudge({"w": values}, seed=0)["w"]
    up = (nudged == jnp.nextafter(values, jnp.full_like(values, jnp.inf))).mean()
    down = (nudged == jnp.nextafter(values, jnp.full_like(values, -jnp.inf))).mean()
    assert nudged.dtype == values.dtype
    assert float(up + down) == 1.0
    assert 0.4 < float(up) < 0.6


def test_zeros_counts_and_keys_stay() -> None:
    state = {"moments": jnp.zeros(5), "count": jnp.int32(7), "key": jax.random.key(3)}
    nudged = nudge(state, seed=0)
    assert nudged["moments"].tolist() == [0.0] * 5
    assert int(nudged["count"]) == 7
    assert jax.random.key_data(nudged["key"]).tolist() == jax.random.key_data(state["key"]).tolist()


def test_another_seed_nudges_otherwise() -> None:
    values = {"w": jnp.ones(100)}
    assert nudge(values, seed=0)["w"].tolist() != nudge(values, seed=1)["w"].tolist()


@pytest.mark.parametrize(
    ("preset", "counters"), [("gpt_tiny", 3), ("t5_tiny", 3), ("moe_tiny", 5), ("vit_tiny", 2), ("vae_tiny", 4)]
)
def test_a_later_start_sets_the_counters_of_the_optimizer_and_of_nothing_else(preset: str, counters: int) -> None:
    config = find_preset(preset)()
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    state = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.number) else bool),
        program.abstract,
    )
    moved = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(start_at(state, 100))
        if leaf.any()
    }
    assert len(moved) == counters
    assert all(int(count) == 100 and "rngs" not in path for path, count in moved.items())


def test_a_later_start_counts_updates_where_several_steps_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(find_preset("vae_tiny")(), first_step=400, accumulate_steps=2)
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), program.abstract)
    monkeypatch.setattr(type(program), "initializer", lambda *_: zeros)
    leaves = jax.tree_util.tree_leaves_with_path(program.save(program.initialize(0)))
    counts = {int(leaf) for path, leaf in leaves if jax.tree_util.keystr(path).endswith("count'].value")}
    assert counts == {200}
