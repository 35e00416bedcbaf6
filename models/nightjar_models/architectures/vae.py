"""A variational autoencoder of two small networks, top to bottom.

In: images in [-1, 1], of which ink or no ink is used. Out: logits of the ink of each pixel, by way of a random latent.

Dimensions: B batch, S side of the image, N pixels, F feed-forward width, Z latent width.
Each initializer names the mesh axes over which its parameter is split.

Source: Kingma and Welling 2014, "Auto-Encoding Variational Bayes", equation 10 and appendix C.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from nightjar_models.architectures.layers import GELU, MATRIX, brightness
from nightjar_models.architectures.stack import checkpointed
from nightjar_models.parallel.sharding import keep_rows_whole, partitioned
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import VAEConfig


class VAE(nnx.Module):
    """An encoder to mean and deviation of the latent, and a decoder to pixels."""

    def __init__(self, config: VAEConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.latent = config.latent
        N, F, Z = config.image**2, config.feed_forward, config.latent
        self.encoder = MLP((N, F, F, 2 * Z), compute, rngs=rngs)
        self.decoder = MLP((Z, F, F, N), compute, rngs=rngs)

    def encode(self, images: Float[Array, "B S S"]) -> tuple[Float[Array, "B Z"], Float[Array, "B Z"]]:
        """Mean and logarithm of the variance of each image's latent."""
        with jax.named_scope("encoder"):
            mean, log_variance = jnp.split(self.encoder(images.reshape(len(images), -1)), 2, axis=-1)
        return mean, log_variance

    def decode(self, latent: Float[Array, "B Z"]) -> Float[Array, "B N"]:
        """Logits of the ink of each pixel."""
        with jax.named_scope("decoder"):
            return self.decoder(latent)


class MLP(nnx.Module):
    """Linear maps with a GELU between them."""

    def __init__(self, sizes: tuple[int, ...], compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.compute = compute
        self.layers = nnx.List(
            nnx.Linear(
                size,
                out,
                dtype=DTYPES[compute.dtype],
                kernel_init=partitioned(MATRIX, ("fsdp", "tensor")),
                bias_init=partitioned(nnx.initializers.zeros_init(), ("tensor",)),
                rngs=rngs,
            )
            for size, out in itertools.pairwise(sizes)
        )

    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B O"]:
        """The last map's result, in float32."""
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            with jax.named_scope(f"layers.{number}"):
                x = checkpointed(self.compute)(layer, keep_rows_whole(x))
            if number < last:
                x = GELU(x)
        return x.astype(jnp.float32)


def measure(model: VAE, batch: Mapping[str, Array]) -> dict[str, Float[Array, " B"]]:
    """As `loss` the negative evidence lower bound in nats per image: `reconstruction` plus the cost of the latent.

    The latent's random numbers come from the `key` of each example.
    """

    def draw(key: PRNGKeyArray) -> Array:
        return jax.random.normal(key, (model.latent,))

    ink = (brightness(batch["image"]) > 0).astype(jnp.float32)
    mean, log_variance = model.encode(ink)
    noise = jax.vmap(draw)(jax.random.wrap_key_data(batch["key"]))
    logits = model.decode(mean + jnp.exp(0.5 * log_variance) * noise)
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, ink.reshape(logits.shape)).sum(axis=-1)
    divergence = 0.5 * (jnp.square(mean) + jnp.exp(log_variance) - 1 - log_variance).sum(axis=-1)
    return {"loss": reconstruction + divergence, "reconstruction": reconstruction}
