"""A nudge moves every float by one unit in the last place, and nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.training.nudge import nudge


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
