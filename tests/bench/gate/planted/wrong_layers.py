"""Layers that compute something else: what replaces a layer of `nightjar_models` while a program is made.

In: which part is wrong. Out: a context manager that patches it.
"""

from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from nightjar_models.architectures import gpt, layers, llama, moe, t5, transformer


def attend(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G K"],
    *,
    is_causal: bool = False,
    ahead: int = 0,
    scale: float = 1.0,
    softmax: Any = jnp.float32,
    **_: Any,
) -> Float[Array, "B T H K"]:
    """Attention written out, without a mask but the causal one."""
    repeats = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, repeats, axis=2) for x in (key, value))
    scores = jnp.einsum("bthk,bshk->bhts", query, key) * (scale / query.shape[-1] ** 0.5)
    if is_causal:
        seen = jnp.tril(jnp.ones((query.shape[1], key.shape[1]), bool), k=ahead)
        scores = jnp.where(seen, scores, -1e9)
    shares = jax.nn.softmax(scores.astype(softmax), axis=-1).astype(query.dtype)
    return jnp.einsum("bhts,bshk->bthk", shares, value)


def patch_attention(**options: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(nnx, "dot_product_attention", partial(attend, **options))


def patch_epsilon(epsilon: float) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for module in (gpt, transformer):
        stack.enter_context(mock.patch.object(module, "EPSILON", epsilon))
    return stack


def patch_rotations() -> AbstractContextManager[Any]:
    right = layers.rotate

    def rotate(x: Float[Array, "B T H K"], base: float) -> Float[Array, "B T H K"]:
        return right(x.astype(jnp.bfloat16), base).astype(x.dtype)

    return mock.patch.object(llama, "rotate", rotate)


def patch_distances() -> AbstractContextManager[Any]:
    right = t5.bucket

    def bucket(distance: Int[Array, "Q P"], *others: Any, **options: Any) -> Int[Array, "Q P"]:
        return right(distance - 1, *others, **options)

    return mock.patch.object(t5, "bucket", bucket)


def patch_padding() -> AbstractContextManager[Any]:
    right = layers.attend

    def attend(*heads: Any, mask: Any = None, **options: Any) -> Any:
        return right(*heads, **options)

    return mock.patch.object(t5, "attend", attend)


def patch_places() -> AbstractContextManager[Any]:
    """Experts that take one token less than they should."""
    right = moe.count_places
    return mock.patch.object(moe, "count_places", lambda config: right(config) - 1)


def allow_causal() -> AbstractContextManager[Any]:
    """The option `is_causal` of a call of Flax's attention, by a mask: Flax 0.12.6 lacks it."""
    right = nnx.MultiHeadAttention.__call__

    def call(self: Any, inputs: Array, *others: Any, is_causal: bool = False, **options: Any) -> Any:
        if is_causal:
            options["mask"] = nnx.make_causal_mask(inputs[..., 0])
        return right(self, inputs, *others, **options)

    return mock.patch.object(nnx.MultiHeadAttention, "__call__", call)
