"""A vision transformer for classification, top to bottom.

In: grey images, or images with channels. Out: one row of logits per image, over the classes.

Dimensions: B batch, S side of the image, P side of a patch, N patches, A channels, D model width, C classes.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", with Beyer et al. 2022, "Better plain ViT baselines":
mean over the patches instead of a class token.
"""

from __future__ import annotations

from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Float

from nightjar_models.architectures.layers import brightness, cross_entropy, layer_norm, multiply
from nightjar_models.architectures.stack import run_layers, stack_layers
from nightjar_models.architectures.transformer import Block
from nightjar_models.parallel.sharding import Keys, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import ViTConfig


class ViT(nnx.Module):
    """Patches, a stack of blocks, the mean over patches, and the logits of the classes."""

    def __init__(self, config: ViTConfig, compute: Compute, rngs: Keys) -> None:
        self.patch, self.compute = config.patch, compute
        P, A, D, C = config.patch, config.channels, config.width, config.classes
        N = (config.image // P) ** 2
        self.patch_embedding = parameter(rngs, (P * P * A, D), (None, "width"), deviation=(P * P * A) ** -0.5)
        self.position_embedding = parameter(rngs, (N, D), (None, "width"), deviation=0.5)
        blocks = [Block(config, rngs, causal=False, compute=compute) for _ in range(config.layers)]
        self.blocks = stack_layers(blocks, compute)
        self.norm = parameter(rngs, (D,), (None,), constant=1.0)
        self.head = parameter(rngs, (D, C), ("width", None), deviation=D**-0.5)

    def __call__(self, images: Float[Array, "B S S *A"]) -> Float[Array, "B C"]:
        """Logits of the classes."""
        embedding = self.patch_embedding[...]
        x = multiply(patches(images.astype(embedding.dtype), self.patch), embedding) + self.position_embedding[...]
        x = run_layers(self.blocks, x, compute=self.compute)
        return layer_norm(x, self.norm[...]).mean(axis=1) @ self.head[...]


def patches(images: Float[Array, "B S S *A"], side: int) -> Float[Array, "B N P*P*A"]:
    """Cuts images into squares, row by row; the channels of a pixel stay together.

    >>> import jax.numpy as jnp
    >>> patches(jnp.arange(16.0).reshape(1, 4, 4), 2)[0, 1].tolist()
    [2.0, 3.0, 6.0, 7.0]
    """
    batch, rows, columns, *channels = images.shape
    tiles = images.reshape(batch, rows // side, side, columns // side, side, *channels)
    return tiles.swapaxes(2, 3).reshape(batch, (rows // side) * (columns // side), -1)


def measure(model: ViT, batch: Mapping[str, Array]) -> dict[str, Float[Array, ""]]:
    """The mean cross entropy in nats per image as `loss`, and the share of right answers as `accuracy`."""
    logits = model(brightness(batch["image"]))
    loss = cross_entropy(logits, batch["label"]).mean()
    return {"loss": loss, "accuracy": (logits.argmax(axis=-1) == batch["label"]).mean()}
