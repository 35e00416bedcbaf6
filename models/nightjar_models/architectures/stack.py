"""Stacks of equal layers: unrolled or scanned, with or without rematerialisation.

In: how to make one layer, and `Compute`. Out: `stack_layers` makes the model's layers, `run_layers` applies them, over
the active mesh: positions split over sequence, scanned layers over pipeline. Scanned layers are one module whose
parameters have a leading axis, as `nnx.vmap` makes them and `nnx.scan` takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from nightjar_models.errors import InputError
from nightjar_models.parallel.pipeline import AXIS as PIPELINE
from nightjar_models.parallel.pipeline import run_pipeline
from nightjar_models.parallel.sharding import active_mesh, keep_batch_split, spread_positions
from nightjar_models.presets.config import Compute

LAYERS = "layers"  # in the name of each operation of a stack
_BY_LAYER = {nnx.PARTITION_NAME: PIPELINE}  # the mesh axis over which scanned parameters are split

INPUT = "layer_input"  # name of the values that a layer is given, for a policy

# Source: docs.jax.dev, "Gradient checkpointing", the policies of jax.checkpoint_policies.
_POLICIES: dict[str, Callable[..., Any]] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload_dots": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "offload_inputs": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def stack_layers(make: Callable[[nnx.Rngs], nnx.Module], count: int, compute: Compute, rngs: nnx.Rngs) -> Any:
    """A list of the layers, or one layer with the stacked parameters of all."""
    if not compute.scan_layers:
        return nnx.List([make(rngs) for _ in range(count)])

    @nnx.split_rngs(splits=count)
    @nnx.vmap(transform_metadata=_BY_LAYER)
    def make_all(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return make_all(rngs)


def run_layers(blocks: Any, carry: Any, *shared: Any, constant: tuple[Any, ...] = (), compute: Compute) -> Any:
    """Calls each block in turn with the previous block's result, with `shared` and with `constant`.

    Args:
        blocks: the result of `stack_layers`.
        carry: the first block's argument, an array or a tree of them; examples come first in each.
        shared: further arguments, the same for each block; examples come first in each.
        constant: arguments behind those, the same for each block and each example.
        compute: the one given to `stack_layers`.
    """
    mesh = active_mesh()
    stages = 1
    if mesh is not None:
        stages = mesh.shape[PIPELINE]
    if stages > 1 and not compute.scan_layers:
        raise InputError(f"--mesh: pp{stages} splits scanned layers.", "add --set compute.scan_layers=true")
    carry = jax.tree.map(spread_positions, carry)
    if not compute.scan_layers:
        for number, block in enumerate(blocks):
            with jax.named_scope(f"{LAYERS}.{number}"):
                carry = checkpointed(compute)(block, carry, *shared, *constant)
        return carry
    with jax.named_scope(LAYERS):
        if mesh is None or stages == 1:
            return _scan(blocks, carry, (*shared, *constant), compute)
        graph, state = nnx.split(blocks)
        leaves, tree = jax.tree.flatten(state)

        def stage(own: Any, carry: Any, others: tuple[Any, ...]) -> Any:
            return _scan(nnx.merge(graph, jax.tree.unflatten(tree, own)), carry, others, compute)

        return run_pipeline(stage, leaves, carry, shared, constant, mesh=mesh, microbatches=compute.microbatches)


def _scan(blocks: Any, carry: Any, others: tuple[Any, ...], compute: Compute) -> Any:
    """Stacked layers, one after the other."""

    @nnx.scan(in_axes=(0, nnx.Carry, None), out_axes=nnx.Carry, transform_metadata=_BY_LAYER)
    def through(block: Any, carry: Any, others: tuple[Any, ...]) -> Any:
        return jax.tree.map(keep_batch_split, checkpointed(compute)(block, carry, *others))

    return through(blocks, carry, others)


def checkpointed(compute: Compute) -> Callable[..., Any]:
    """Calls a block with its arguments; the backward pass recomputes values that the policy does not keep."""
    if compute.remat == "none":
        return lambda block, *arguments: block(*arguments)
    # Within a scan nothing outside can be merged with the recomputed part, so no barrier against it is needed.
    policy = _POLICIES[compute.remat]
    saved: Callable[..., Any] = nnx.remat(_call_named, policy=policy, prevent_cse=not compute.scan_layers)
    return saved


def _call_named(block: Any, carry: Any, *others: Any) -> Any:
    name: Callable[..., Any] = checkpoint_name
    return block(jax.tree.map(lambda value: name(value, INPUT), carry), *others)
