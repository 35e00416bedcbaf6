"""Stacks of equal layers: unrolled or scanned, with or without rematerialisation.

In: the blocks of a model and `Compute`. Out: `stack_layers` makes what the model keeps, `run_layers` applies it, over
the active mesh: positions split over sequence, scanned layers over pipeline. Scanned layers hold each parameter once,
with a leading axis `layers`; they start from the random numbers of unrolled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nightjar_models.errors import InputError
from nightjar_models.parallel.pipeline import AXIS as PIPELINE
from nightjar_models.parallel.pipeline import run_pipeline
from nightjar_models.parallel.sharding import active_mesh, keep_batch_split, spread_positions
from nightjar_models.presets.config import Compute

LAYERS = "layers"  # the logical axis over which scanned parameters are stacked

# Source: docs.jax.dev, "Gradient checkpointing", the policies of jax.checkpoint_policies.
_POLICIES: dict[str, Callable[..., Any]] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def stack_layers(blocks: Sequence[nnx.Module], compute: Compute) -> Any:
    """A list of the blocks, or one block whose parameters are those of all, stacked."""
    if not compute.scan_layers:
        return nnx.List(blocks)
    graph, first = nnx.split(blocks[0])
    flat = [[variable for _, variable in nnx.to_flat_state(nnx.state(block))] for block in blocks]
    stacked = [
        type(same[0])(jnp.stack([one.get_value() for one in same]), axes=(LAYERS, *same[0].get_metadata("axes")))
        for same in zip(*flat, strict=True)
    ]
    paths = [path for path, _ in nnx.to_flat_state(first)]
    return nnx.merge(graph, nnx.from_flat_state(list(zip(paths, stacked, strict=True))))


def run_layers(blocks: Any, carry: Any, *shared: Any, constant: tuple[Any, ...] = (), compute: Compute) -> Any:
    """Each block in turn, called with what the one before returned, with `shared` and with `constant`.

    Args:
        blocks: what `stack_layers` made.
        carry: the first block's argument, an array or a tree of them; examples come first in each.
        shared: further arguments, the same for each block; examples come first in each.
        constant: arguments behind those, the same for each block and each example.
        compute: the one given to `stack_layers`.

    Raises:
        InputError: the active mesh has a pipeline and the layers are not scanned, or it does not fit their sizes.
    """
    mesh = active_mesh()
    stages = 1 if mesh is None else mesh.shape[PIPELINE]
    if stages > 1 and not compute.scan_layers:
        raise InputError(f"--mesh: pp{stages} splits scanned layers.", "add --set compute.scan_layers=true")
    carry = jax.tree.map(spread_positions, carry)
    if not compute.scan_layers:
        for number, block in enumerate(blocks):
            with jax.named_scope(f"{LAYERS}.{number}"):
                carry = checkpointed(block, compute)(carry, *shared, *constant)
        return carry
    graph, state = nnx.split(blocks)

    def through(own: Any, carry: Any, others: tuple[Any, ...]) -> Any:
        def step(carry: Any, layer: Any) -> tuple[Any, None]:
            carry = checkpointed(nnx.merge(graph, layer), compute)(carry, *others)
            return jax.tree.map(keep_batch_split, carry), None

        return jax.lax.scan(step, carry, own)[0]

    with jax.named_scope(LAYERS):
        if mesh is None or stages == 1:
            return through(state, carry, (*shared, *constant))
        return run_pipeline(through, state, carry, shared, constant, mesh=mesh, microbatches=compute.microbatches)


def checkpointed(block: Any, compute: Compute) -> Callable[..., Any]:
    """The block as a function whose backward pass recomputes what the policy does not keep."""
    if compute.remat == "none":
        return block  # type: ignore[no-any-return]
    graph, state = nnx.split(block)

    def call(state: Any, *arguments: Any) -> Any:
        return nnx.merge(graph, state)(*arguments)

    # Within a scan nothing outside can be merged with the recomputed part, so no barrier against it is needed.
    saved = jax.checkpoint(call, policy=_POLICIES[compute.remat], prevent_cse=not compute.scan_layers)
    return lambda *arguments: saved(state, *arguments)
