"""A vision transformer for classification, top to bottom.

In: grey images, or images with channels. Out: one row of logits per image, over the classes.

Dimensions: B batch, S side of the image, P side of a patch, N patches, A channels, D model width, C classes.
Each initializer names the mesh axes over which its parameter is split.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (dropout of table 3 included), with Beyer et al. 2022,
"Better plain ViT baselines": mean over the patches instead of a class token. Label smoothing: Szegedy et al. 2016,
"Rethinking the Inception Architecture for Computer Vision".
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from nightjar_models.architectures.layers import EPSILON, MATRIX, TABLE, brightness
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.architectures.transformer import Block
from nightjar_models.parallel.sharding import partitioned
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import ViTConfig


class ViT(nnx.Module):
    """Patches, a stack of blocks, the mean over patches, and the logits of the classes."""

    def __init__(self, config: ViTConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.compute, self.smoothing = compute, config.smoothing
        P, D, dtype = config.patch, config.width, DTYPES[compute.dtype]
        N = (config.image // P) ** 2
        self.patch_embedding = nnx.Conv(
            config.channels,
            D,
            kernel_size=(P, P),
            strides=(P, P),
            padding="VALID",
            dtype=dtype,
            kernel_init=partitioned(MATRIX, (None, None, None, "fsdp")),
            rngs=rngs,
        )
        position_init = partitioned(TABLE, (None, "fsdp"))
        self.position_embedding = nnx.Param(position_init(rngs.params(), (N, D)))
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)
        self.blocks = stack_layers(
            lambda rngs: Block(config, compute, causal=False, rngs=rngs), config.layers, compute, rngs
        )
        self.norm = nnx.LayerNorm(D, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(
            D, config.classes, dtype=dtype, kernel_init=partitioned(MATRIX, ("fsdp", None)), rngs=rngs
        )

    def __call__(self, images: Float[Array, "B S S *A"]) -> Float[Array, "B C"]:
        """Logits of the classes."""
        if images.ndim == 3:
            images = jnp.expand_dims(images, -1)
        patches = self.patch_embedding(images)
        x = patches.reshape(len(images), -1, patches.shape[-1])
        x = self.dropout(x + self.position_embedding[...].astype(x.dtype))
        x = run_layers(self.blocks, x, compute=self.compute)
        return self.head(self.norm(x).mean(axis=1))


def measure(model: ViT, batch: Mapping[str, Array]) -> dict[str, Float[Array, " B"]]:
    """The cross entropy of each image in nats as `loss`, and whether the answer is right as `accuracy`."""
    logits = model(brightness(batch["image"]))
    right = (logits.argmax(axis=-1) == batch["label"]).astype(jnp.float32)
    labels = optax.smooth_labels(jax.nn.one_hot(batch["label"], logits.shape[-1]), model.smoothing)
    loss = optax.softmax_cross_entropy(logits.astype(jnp.float32), labels)
    return {"loss": loss, "accuracy": right}
