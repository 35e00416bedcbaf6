"""Parameters of `flax.nnx` that lie across a mesh: as annotated, when they are made, and before they are.

Source: the guides "Scale up on multiple devices" and "Flax sharding" of flax.readthedocs.io.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nightjar_models.conformance.agreement import assert_close, assert_same, draw

X = draw(8, 4)


class Sharded(nnx.Module):
    """A linear layer whose kernel lies across `model`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        self.linear = nnx.Linear(4, 6, kernel_init=init, use_bias=False, rngs=rngs)


def test_partitioning(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        layer = nnx.jit(lambda: Sharded(nnx.Rngs(0)))()
    state = nnx.state(layer)
    assert nnx.get_partition_spec(state)["linear"]["kernel"].get_value() == PartitionSpec(None, "model")
    sharding = nnx.get_named_sharding(state, mesh)["linear"]["kernel"].get_value()
    assert sharding == NamedSharding(mesh, PartitionSpec(None, "model"))
    assert layer.linear.kernel[...].sharding.is_equivalent_to(sharding, 2)
    assert_close(layer.linear(jnp.asarray(X)), X @ np.asarray(layer.linear.kernel[...], np.float64))


def test_parameters_are_sharded_as_they_are_made(mesh: Mesh) -> None:
    wanted = NamedSharding(mesh, PartitionSpec(None, "model"))
    with jax.set_mesh(mesh), nnx.use_eager_sharding(True):
        eager = Sharded(nnx.Rngs(0)).linear.kernel[...]
    with jax.set_mesh(mesh), nnx.use_eager_sharding(False):
        late = Sharded(nnx.Rngs(0)).linear.kernel[...]
    assert eager.sharding.is_equivalent_to(wanted, 2)
    assert not late.sharding.is_equivalent_to(wanted, 2)
    assert_same(eager, np.asarray(late))


def test_abstract_model(mesh: Mesh) -> None:
    graphdef, state = nnx.get_abstract_model(lambda: Sharded(nnx.Rngs(0)), mesh)
    (kernel,) = jax.tree.leaves(state)
    assert isinstance(kernel, jax.ShapeDtypeStruct)
    assert (kernel.shape, kernel.dtype) == ((4, 6), jnp.float32)
    assert kernel.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "model")), 2)
    weights = draw(4, 6)
    layer = nnx.merge(graphdef, jax.tree.map(lambda leaf: jax.device_put(weights, leaf.sharding), state))
    assert_close(layer.linear(jnp.asarray(X)), X.astype(np.float64) @ weights)
