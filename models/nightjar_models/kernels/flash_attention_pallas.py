"""Flash attention as three Pallas kernels: forward, gradient of the queries, gradient of keys and values.

In: queries, keys and values [B, T, H, K]. Out: their attention, and its gradients, without a [T, T] matrix in memory.
On a GPU Pallas compiles the kernels (Triton); on the CPU they run in Pallas's interpreter, which is exact and slow.
Nothing of the models uses it: cuDNN's attention is faster. It is compiled for absent GPUs each night, and shows how a
kernel with a gradient is written.

Dimensions: B examples, T positions, a multiple of 64, H heads, K numbers of a head, a power of two; N examples x heads.

Source: Dao 2023, "FlashAttention-2", algorithms 1 and 2; docs.jax.dev, "Pallas Quickstart".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

BLOCK = 64  # positions whose scores a block of threads holds in registers

Heads = Float[Array, "B T H K"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attention(query: Heads, key: Heads, value: Heads, causal: bool = True) -> Heads:
    """The softmax of scaled products of queries and keys, times the values.

    Args:
        query: as many positions as the others.
        causal: whether a position attends to itself and earlier ones alone.
    """
    return _forward(query, key, value, causal)[0]


def _forward(query: Array, key: Array, value: Array, causal: bool) -> tuple[Array, tuple[Array, ...]]:
    if query.shape != key.shape or query.shape != value.shape or query.shape[1] % BLOCK:
        shapes = f"{query.shape}, {key.shape}, {value.shape}"
        raise ValueError(f"shapes {shapes}: expected three equal ones with a multiple of {BLOCK} positions")
    q, k, v = map(_by_head, (query, key, value))
    sums = jax.ShapeDtypeStruct(q.shape[:2], jnp.float32)  # type: ignore[no-untyped-call]
    result, logs = _run(functools.partial(_forward_block, causal), (q,), (k, v), (q, sums))
    return _by_example(result, query), (q, k, v, result, logs)


def _backward(causal: bool, kept: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    q, k, v, result, logs = kept
    dy = _by_head(gradient)
    inner = (dy.astype(jnp.float32) * result.astype(jnp.float32)).sum(axis=-1)
    (dq,) = _run(functools.partial(_query_block, causal), (q, dy, logs, inner), (k, v), (q,))
    dk, dv = _run(functools.partial(_key_block, causal), (k, v), (q, dy, logs, inner), (k, v))
    return _by_example(dq, gradient), _by_example(dk, gradient), _by_example(dv, gradient)


attention.defvjp(_forward, _backward)


def _forward_block(causal: bool, q_ref: Any, k_ref: Any, v_ref: Any, y_ref: Any, log_ref: Any) -> None:
    """One block of queries against all keys; the largest score so far keeps the exponentials finite."""
    block, q = pl.program_id(1), q_ref[...].astype(jnp.float32)

    def step(j: Any, carry: Any) -> Any:
        most, total, result = carry
        scores = _scores(q, _load(k_ref, j), block, j, causal)
        new = jnp.maximum(most, scores.max(axis=1))
        weights, shrunk = jnp.exp(scores - new[:, None]), jnp.exp(most - new)
        return new, total * shrunk + weights.sum(axis=1), result * shrunk[:, None] + weights @ _load(v_ref, j)

    start = jnp.full(BLOCK, -jnp.inf), jnp.zeros(BLOCK), jnp.zeros(q.shape)
    most, total, result = jax.lax.fori_loop(0, _count(k_ref, block, causal), step, start)
    y_ref[...] = (result / total[:, None]).astype(y_ref.dtype)
    log_ref[...] = most + jnp.log(total)


def _query_block(
    causal: bool, q_ref: Any, dy_ref: Any, log_ref: Any, inner_ref: Any, k_ref: Any, v_ref: Any, dq_ref: Any
) -> None:
    block, q, dy = pl.program_id(1), q_ref[...].astype(jnp.float32), dy_ref[...].astype(jnp.float32)
    logs, inner = log_ref[...], inner_ref[...]

    def step(j: Any, dq: Any) -> Any:
        k = _load(k_ref, j)
        weights = jnp.exp(_scores(q, k, block, j, causal) - logs[:, None])
        return dq + (weights * (dy @ _load(v_ref, j).T - inner[:, None])) @ k

    dq = jax.lax.fori_loop(0, _count(k_ref, block, causal), step, jnp.zeros(q.shape))
    dq_ref[...] = (dq * _scale(q)).astype(dq_ref.dtype)


def _key_block(
    causal: bool,
    k_ref: Any,
    v_ref: Any,
    q_ref: Any,
    dy_ref: Any,
    log_ref: Any,
    inner_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
) -> None:
    block, k, v = pl.program_id(1), k_ref[...].astype(jnp.float32), v_ref[...].astype(jnp.float32)

    def step(i: Any, carry: Any) -> Any:
        dk, dv = carry
        q, dy = _load(q_ref, i), _load(dy_ref, i)
        weights = jnp.exp(_scores(q, k, i, block, causal) - _load(log_ref, i)[:, None])
        return dk + (weights * (dy @ v.T - _load(inner_ref, i)[:, None])).T @ q, dv + weights.T @ dy

    first = jnp.where(causal, block, 0)
    start = jnp.zeros(k.shape), jnp.zeros(k.shape)
    dk, dv = jax.lax.fori_loop(first, q_ref.shape[0] // BLOCK, step, start)
    dk_ref[...] = (dk * _scale(k)).astype(dk_ref.dtype)
    dv_ref[...] = dv.astype(dv_ref.dtype)


def _scores(q: Array, k: Array, i: Any, j: Any, causal: bool) -> Array:
    """Scores of the queries of block i and the keys of block j."""
    scores = q @ k.T * _scale(q)
    if not causal:
        return scores
    rows, columns = (n * BLOCK + jnp.arange(BLOCK) for n in (i, j))
    return jnp.where(rows[:, None] >= columns[None, :], scores, -jnp.inf)


def _scale(q: Array) -> float:
    return float(q.shape[-1] ** -0.5)


def _count(k_ref: Any, block: Any, causal: bool) -> Any:
    """Blocks of keys that a block of queries attends to."""
    if causal:
        return block + 1
    return k_ref.shape[0] // BLOCK


def _load(ref: Any, block: Any) -> Array:
    loaded: Array = ref[pl.ds(block * BLOCK, BLOCK)].astype(jnp.float32)
    return loaded


def _run(kernel: Callable[..., None], blocks: tuple[Array, ...], whole: tuple[Array, ...], results: Any) -> Any:
    """Runs a kernel for each head and block of `blocks` and `results`; it sees all positions of `whole`."""
    heads, positions = blocks[0].shape[:2]
    if not heads * positions:
        return [jnp.zeros(one.shape, one.dtype) for one in results]

    def by_block(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, BLOCK, *array.shape[2:]), lambda n, i: (n, i, *(0,) * (array.ndim - 2)))

    def all_positions(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, *array.shape[1:]), lambda n, i: (n, *(0,) * (array.ndim - 1)))

    call = functools.partial(
        pl.pallas_call,
        kernel,
        out_shape=[jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results],  # type: ignore[no-untyped-call]
        grid=(heads, positions // BLOCK),
        in_specs=[*map(by_block, blocks), *map(all_positions, whole)],
        out_specs=[by_block(one) for one in results],
    )
    # the target decides, not the host: a program for an absent GPU is traced on a CPU
    return jax.lax.platform_dependent(
        *blocks, *whole, cpu=call(interpret=True), default=call(compiler_params=triton.CompilerParams())
    )


def _by_head(x: Array) -> Array:
    """[B, T, H, K] to [N, T, K]."""
    return x.swapaxes(1, 2).reshape(x.shape[0] * x.shape[2], x.shape[1], x.shape[3])


def _by_example(x: Array, like: Array) -> Array:
    return x.reshape(like.shape[0], like.shape[2], *x.shape[1:]).swapaxes(1, 2)


def make_arguments() -> tuple[Any, ...]:
    """Arguments of `compiled`, of the shapes that the nightly compiles."""
    shape = jax.ShapeDtypeStruct((2, 512, 4, 64), jnp.bfloat16)  # type: ignore[no-untyped-call]
    return shape, shape, shape


compiled = jax.jit(jax.grad(lambda q, k, v: attention(q, k, v).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
