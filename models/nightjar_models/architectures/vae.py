"""A variational autoencoder of two small networks, top to bottom.

In: images in [-1, 1], of which ink or no ink is used. Out: logits of the ink of each pixel, by way of a random latent.

Dimensions: B batch, S side of the image, N pixels, F feed-forward width, Z latent width.
Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis each is split.

Source: Kingma and Welling 2014, "Auto-Encoding Variational Bayes", equation 10 and appendix C.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from nightjar_models.architectures.layers import brightness
from nightjar_models.architectures.stack import checkpointed
from nightjar_models.parallel.sharding import Keys, keep_rows_whole, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import VAEConfig


class VAE(nnx.Module):
    """An encoder to mean and deviation of the latent, and a decoder to pixels."""

    def __init__(self, config: VAEConfig, compute: Compute, rngs: Keys) -> None:
        self.latent, self.compute = config.latent, compute
        N, F, Z = config.image**2, config.feed_forward, config.latent
        self.encoder = nnx.List([Linear(N, F, rngs, jax.nn.gelu), Linear(F, F, rngs, jax.nn.gelu)])
        self.posterior = Linear(F, 2 * Z, rngs)
        self.decoder = nnx.List([Linear(Z, F, rngs, jax.nn.gelu), Linear(F, F, rngs, jax.nn.gelu)])
        self.pixels = Linear(F, N, rngs)

    def encode(self, images: Float[Array, "B S S"]) -> tuple[Float[Array, "B Z"], Float[Array, "B Z"]]:
        """Mean and logarithm of the variance of each image's latent."""
        x = images.reshape(len(images), -1).astype(self.posterior.bias[...].dtype)
        for number, layer in enumerate(self.encoder):
            with jax.named_scope(f"encoder.{number}"):
                x = checkpointed(layer, self.compute)(x)
        with jax.named_scope("posterior"):
            mean, log_variance = jnp.split(self.posterior(x).astype(jnp.float32), 2, axis=-1)
        return mean, log_variance

    def decode(self, latent: Float[Array, "B Z"]) -> Float[Array, "B N"]:
        """Logits of the ink of each pixel."""
        x = latent.astype(self.pixels.bias[...].dtype)
        for number, layer in enumerate(self.decoder):
            with jax.named_scope(f"decoder.{number}"):
                x = checkpointed(layer, self.compute)(x)
        with jax.named_scope("pixels"):
            return self.pixels(x).astype(jnp.float32)


class Linear(nnx.Module):
    """A linear map with a bias, and what follows it."""

    def __init__(self, size: int, out: int, rngs: Keys, activation: Callable[[Array], Array] = lambda x: x) -> None:
        self.activation = activation
        self.weight = parameter(rngs, (size, out), ("width", "feed_forward"), deviation=size**-0.5)
        self.bias = parameter(rngs, (out,), ("feed_forward",), constant=0.0)

    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B O"]:
        """The layer."""
        rows: Array = keep_rows_whole(x)
        return self.activation(rows @ self.weight[...] + self.bias[...])


def measure(model: VAE, batch: Mapping[str, Array]) -> dict[str, Float[Array, ""]]:
    """As `loss` the negative evidence lower bound in nats per image: `reconstruction` plus what the latent costs.

    The latent's random numbers come from the `key` of each example.
    """

    def draw(key: PRNGKeyArray) -> Array:
        return jax.random.normal(key, (model.latent,))

    ink = (brightness(batch["image"]) > 0).astype(jnp.float32)
    mean, log_variance = model.encode(ink)
    noise = jax.vmap(draw)(jax.random.wrap_key_data(batch["key"]))
    logits = model.decode(mean + jnp.exp(0.5 * log_variance) * noise)
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, ink.reshape(logits.shape)).sum(axis=-1).mean()
    divergence = 0.5 * (jnp.square(mean) + jnp.exp(log_variance) - 1 - log_variance).sum(axis=-1).mean()
    return {"loss": reconstruction + divergence, "reconstruction": reconstruction}
