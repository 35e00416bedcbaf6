"""A nudge by rounding: parameters that start one unit in the last place higher or lower.

In: the state that a training starts from, and a seed. Out: the same with every float other than zero nudged. Data,
random numbers and dropout stay as they are, so that what the training does otherwise is what rounding does to it.
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
