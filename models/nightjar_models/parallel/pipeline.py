"""GPipe pipeline parallelism: microbatches pass from stage to stage, and the stages work at the same time.

In: layers whose parameters are stacked, their first axis split over the mesh axis `pipeline`, and a stream of examples.
Out: the stream after all layers, on every stage. Of `microbatches + stages - 1` ticks a stage idles in `stages - 1`.
The backward pass is the transpose of the forward one: the same schedule in reverse.

Source: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from nightjar_models.errors import InputError
from nightjar_models.parallel.sharding import BATCH, keep_batch_split

AXIS = "pipeline"
keep_microbatches_split = partial(keep_batch_split, axis=1)  # [microbatch, example, ...]


log = logging.getLogger(__name__)


def run_pipeline(
    stage: Callable[[Any, Any, tuple[Any, ...]], Any],
    parameters: Any,
    carry: Any,
    shared: tuple[Any, ...] = (),
    constant: tuple[Any, ...] = (),
    *,
    mesh: Mesh,
    microbatches: int,
) -> Any:
    """Sends a batch through all stages.

    Args:
        stage: a stage's own parameters, a microbatch of `carry` and one of `shared` with `constant` behind it, to the
            next stage's input; of the same shapes as `carry`.
        parameters: arrays whose first axis counts the layers, a multiple of the mesh's pipeline.
        carry: arrays with a leading axis of examples.
        shared: arrays with a leading axis of examples, that every stage reads.
        constant: arrays without examples, that every stage reads.
        mesh: has the axis `pipeline`; how its other axes split the arguments is left to the compiler.
        microbatches: the number of parts of the batch; more parts idle less.
    """
    stages = mesh.shape[AXIS]
    layers = jax.tree.leaves(parameters)[0].shape[0]
    examples = jax.tree.leaves(carry)[0].shape[0]
    if layers % stages:
        raise InputError(f"--mesh: {layers} layers, expected a multiple of the mesh's pipeline ({stages}).")
    if any(jnp.shape(leaf)[:1] != (examples,) for leaf in jax.tree.leaves((carry, shared))):
        raise InputError(
            f"--mesh: pp{stages} needs layers whose arguments all have one row per example.",
            "this model's have not: use another axis",
        )
    if examples % microbatches:
        raise InputError(f"batch_size: expected a multiple of compute.microbatches ({microbatches}), found {examples}.")

    def run(own: Any, carry: Any, shared: Any, constant: Any) -> Any:
        stage_index = jax.lax.axis_index(AXIS)

        def tick(state: tuple[Any, Any], time: Array) -> tuple[tuple[Any, Any], None]:
            held, done = state[0], jax.tree.map(keep_microbatches_split, state[1])
            number = jnp.clip(time - stage_index, 0, microbatches - 1)  # outside of these bounds the stage idles
            first = _take(carry, jnp.minimum(time, microbatches - 1))
            held = jax.tree.map(lambda new, old: keep_batch_split(jnp.where(stage_index == 0, new, old)), first, held)
            made = stage(own, held, (*_take(shared, number), *constant))
            fresh = (stage_index == stages - 1) & (time >= stage_index)
            done = jax.tree.map(lambda all_, one: all_.at[number].set(jnp.where(fresh, one, all_[number])), done, made)
            onwards = [(i, i + 1) for i in range(stages - 1)]
            return (jax.lax.ppermute(made, AXIS, onwards), done), None  # type: ignore[no-untyped-call]

        start = jax.tree.map(lambda x: jnp.zeros_like(x[0]), carry), jax.tree.map(jnp.zeros_like, carry)
        (_, done), _ = jax.lax.scan(tick, start, jnp.arange(microbatches + stages - 1))
        return jax.tree.map(lambda x: masked_sum(x, AXIS, source=stages - 1), done)

    everywhere, by_layer = PartitionSpec(), PartitionSpec(AXIS)  # type: ignore[no-untyped-call]
    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(by_layer, everywhere, everywhere, everywhere),
        out_specs=everywhere,
        axis_names={AXIS},
        check_vma=False,
    )
    made = _join(sharded(parameters, _cut(carry, microbatches), _cut(shared, microbatches), constant))
    return jax.tree.map(partial(keep_batch_split, over=(*BATCH, AXIS)), made)  # each stage goes on with its share


def _cut(tree: Any, parts: int) -> Any:
    """Microbatches along a new first axis. Each takes every `parts`-th example: examples stay on their device."""
    return jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), tree)


def _join(tree: Any) -> Any:
    """Undoes `_cut`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), tree)


def _take(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), tree)


def broadcast(x: Array, axis: str, *, source: int, platform: str) -> Array:
    """The value of position `source` along a mesh axis, at every position.

    Args:
        source: position of the value to send.
        platform: platform of the mesh's devices: `cuda`, `gpu` or `cpu`.
    """
    if platform != "cpu":
        # A tuple: the lowering of JAX 0.10.2 reads a bare name letter by letter, each as an axis.
        sent: Array = jax.lax.pbroadcast(x, (axis,), source)  # type: ignore[no-untyped-call]
        return sent
    log.info("collective broadcast over %s: all-reduce of masked values, since XLA:CPU has no broadcast", axis)
    return masked_sum(x, axis, source=source)


def masked_sum(x: Array, axis: str, *, source: int) -> Array:
    """The value of position `source`, by an all-reduce in which all other positions add zeros; differentiable."""
    wide = x.astype(jnp.int8) if x.dtype == jnp.bool_ else x
    kept = jnp.where(jax.lax.axis_index(axis) == source, wide, jnp.zeros_like(wide))
    summed: Array = jax.lax.psum(kept, axis)  # type: ignore[no-untyped-call]
    return summed.astype(x.dtype)
