"""Which digit is it? A vision transformer, top to bottom.

In: grey images. Out: one row of logits per image, over the classes.

Dimensions: B batch, S side of the image, P side of a patch, N patches, D model width, H heads, K width of a head,
F feed-forward width, C classes. Each parameter names its logical axes beside its initializer; `sharding.py` says over
which mesh axis each is split.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", with Beyer et al. 2022, "Better plain ViT baselines":
mean over the patches instead of a class token.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from nightjar_models.config import ViTConfig
from nightjar_models.sharding import parameter


class ViT(nnx.Module):
    """Patches, a stack of blocks, the mean over patches, and the logits of the classes."""

    def __init__(self, config: ViTConfig, rngs: nnx.Rngs) -> None:
        self.patch = config.patch
        P, D, C = config.patch, config.width, config.classes
        N = (config.image // P) ** 2
        self.patch_embedding = parameter(rngs, (P * P, D), (None, "width"), deviation=1 / P)
        self.position_embedding = parameter(rngs, (N, D), (None, "width"), deviation=0.5)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.head = parameter(rngs, (D, C), ("width", None), deviation=D**-0.5)

    def __call__(self, images: Float[Array, "B S S"]) -> Float[Array, "B C"]:
        """Logits of the classes."""
        x = patches(images, self.patch) @ self.patch_embedding[...] + self.position_embedding[...]
        for block in self.blocks:
            x = block(x)
        return layer_norm(x, self.norm[...]).mean(axis=1) @ self.head[...]


class Block(nnx.Module):
    """Attention, then a feed-forward layer, each added to its input."""

    def __init__(self, config: ViTConfig, rngs: nnx.Rngs) -> None:
        D, H, F = config.width, config.heads, config.feed_forward
        K, residual = D // H, (2 * config.layers) ** -0.5
        self.attention_norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.qkv = parameter(rngs, (D, 3, H, K), ("width", None, "heads", None), deviation=D**-0.5)
        self.projection = parameter(rngs, (H, K, D), ("heads", None, "width"), deviation=residual * D**-0.5)
        self.feed_forward_norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.w_in = parameter(rngs, (D, F), ("width", "feed_forward"), deviation=D**-0.5)
        self.b_in = parameter(rngs, (F,), ("feed_forward",), constant=0.0)
        self.w_out = parameter(rngs, (F, D), ("feed_forward", "width"), deviation=residual * F**-0.5)
        self.b_out = parameter(rngs, (D,), (None,), constant=0.0)

    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """One layer of the stack."""
        x = x + attention(layer_norm(x, self.attention_norm[...]), self.qkv[...], self.projection[...])
        h = layer_norm(x, self.feed_forward_norm[...])
        return x + feed_forward(h, self.w_in[...], self.b_in[...], self.w_out[...], self.b_out[...])


def patches(images: Float[Array, "B S S"], side: int) -> Float[Array, "B N P*P"]:
    """Cuts images into squares, row by row.

    >>> patches(jnp.arange(16.0).reshape(1, 4, 4), 2)[0, 1].tolist()
    [2.0, 3.0, 6.0, 7.0]
    """
    batch, rows, columns = images.shape
    tiles = images.reshape(batch, rows // side, side, columns // side, side).transpose(0, 1, 3, 2, 4)
    return tiles.reshape(batch, -1, side * side)


def layer_norm(x: Float[Array, "B N D"], scale: Float[Array, " D"]) -> Float[Array, "B N D"]:
    """Zero mean and unit variance over the width, then a learned scale (Ba et al. 2016)."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * scale


def attention(
    x: Float[Array, "B N D"], qkv: Float[Array, "D 3 H K"], projection: Float[Array, "H K D"]
) -> Float[Array, "B N D"]:
    """Multi-head attention in which every patch sees every patch."""
    q, k, v = jnp.einsum("bnd,dchk->cbhnk", x, qkv)
    weights = jax.nn.softmax(jnp.einsum("bhnk,bhmk->bhnm", q, k) * q.shape[-1] ** -0.5, axis=-1)
    return jnp.einsum("bhnk,hkd->bnd", jnp.einsum("bhnm,bhmk->bhnk", weights, v), projection)


def feed_forward(
    x: Float[Array, "B N D"],
    w_in: Float[Array, "D F"],
    b_in: Float[Array, " F"],
    w_out: Float[Array, "F D"],
    b_out: Float[Array, " D"],
) -> Float[Array, "B N D"]:
    """Two linear maps with a GELU (tanh form) between them, patch by patch."""
    return jax.nn.gelu(x @ w_in + b_in) @ w_out + b_out


def measure(model: ViT, batch: Mapping[str, Array]) -> dict[str, Float[Array, ""]]:
    """The mean cross entropy in nats per image as `loss`, and the share of right answers as `accuracy`."""
    logits = model(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
    return {"loss": loss, "accuracy": (logits.argmax(axis=-1) == batch["label"]).mean()}
