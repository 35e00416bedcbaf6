"""Other starts of a training: one rounding off, or at a later step.

In: the state that a training starts from. Out: the same with every float other than zero one unit in the last place
higher or lower, so that later differences are rounding; or with the optimizer's counters set to a step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def nudge(state: Any, seed: int | jax.Array) -> Any:
    """Each float of a tree, one unit in the last place up or down at random; zeros and other types stay.

    >>> nudged = nudge({"w": jnp.ones(4), "count": jnp.int32(3)}, seed=0)
    >>> bool((jnp.abs(nudged["w"] - 1) < 1.3e-7).all() & (nudged["w"] != 1).all()), int(nudged["count"])
    (True, 3)
    """
    leaves, tree = jax.tree.flatten(state)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(tree, [_nudge_leaf(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])


def _nudge_leaf(values: Any, key: jax.Array) -> Any:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    ends = jnp.where(jax.random.bernoulli(key, shape=jnp.shape(values)), jnp.inf, -jnp.inf).astype(values.dtype)
    return jnp.where(values == 0, values, jnp.nextafter(values, ends))


def start_at(state: Any, step: int) -> Any:
    """The state with the optimizer's counters at a step: schedules and bias corrections follow that step.

    Parameters and moments stay as at a first step. Counters of random numbers stay, too.

    >>> start_at({"w": jnp.ones(2), "count": jnp.int32(0)}, 100)["count"].item()
    100
    """

    def set_counter(path: Any, leaf: Any) -> Any:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        named = [name for name in names if name not in ("", "value")]
        counts = named and named[-1] in ("count", "step") and "rngs" not in named
        return jnp.full_like(leaf, step) if counts else leaf

    return jax.tree_util.tree_map_with_path(set_counter, state)
