"""A text-conditioned diffusion U-Net, top to bottom.

In: noisy images, how noisy they are, and text as bytes. Out: the velocity that leads back to the picture; `sample`
draws pictures with classifier-free guidance.

Dimensions: B batch, S side of the image, A channels, L bytes of the text, W width of the text, E width of the
embedding of noise and text, X x Y pixels of a level, P of them, I channels in, O channels out, H heads, K width of a
head. Each parameter names its logical axes beside its initializer; `sharding.py` says over which mesh axis it is split.

Source: Saharia et al. 2022, "Photorealistic Text-to-Image Diffusion Models" (Imagen: pixels, text both pooled and
attended to, keys of text and pixels side by side); Salimans and Ho 2022 (velocity, cosine schedule); Ho and Salimans
2022 (guidance). Unlike Imagen: the text encoder is small and trained along, and there is no super-resolution.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from nightjar_models.architectures.layers import attend, brightness, layer_norm, look_up
from nightjar_models.architectures.stack import checkpointed, run_layers, stack_layers
from nightjar_models.architectures.transformer import Block
from nightjar_models.parallel.sharding import Keys, active_mesh, keep_rows_whole, parameter
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import DiffusionConfig, GPTConfig

EMBEDDING = 4  # times the width at full resolution: how wide the embedding of noise and text is
GROUP = 8  # channels that are normalised together


class UNet(nnx.Module):
    """Text encoder, embedding of the noise level, blocks down to the coarsest level and up again."""

    def __init__(self, config: DiffusionConfig, compute: Compute, rngs: Keys) -> None:
        self.config, self.compute = config, compute
        A, D, W, L = config.channels, config.width, config.text_width, config.text_length
        E = EMBEDDING * D
        self.text_embedding = parameter(rngs, (config.vocabulary, W), (None, None), deviation=0.5)
        self.text_positions = parameter(rngs, (L, W), (None, None), deviation=0.5)
        sizes = GPTConfig(length=L, width=W, layers=config.text_layers, heads=config.heads, feed_forward=4 * W)
        text = [Block(sizes, rngs, causal=False, compute=compute) for _ in range(config.text_layers)]
        self.text_blocks = stack_layers(text, compute)
        self.text_norm = parameter(rngs, (W,), (None,), constant=1.0)
        self.text_pooled = parameter(rngs, (W, E), (None, "width"), deviation=W**-0.5)
        self.noise_in = parameter(rngs, (D, E), (None, "width"), deviation=D**-0.5)
        self.noise_out = parameter(rngs, (E, E), (None, "width"), deviation=E**-0.5)
        self.stem = parameter(rngs, (3, 3, A, D), (None, None, None, "width"), deviation=(9 * A) ** -0.5)
        down, up, skips, channels = [], [], [D], D
        for level in range(config.levels):
            for _ in range(config.blocks):
                down.append(Layer(config, channels, level, compute, rngs))
                channels = (level + 1) * D
                skips.append(channels)
        self.middle = Layer(config, channels, config.levels - 1, compute, rngs)
        for level in reversed(range(config.levels)):
            for _ in range(config.blocks):
                up.append(Layer(config, channels + skips.pop(), level, compute, rngs))
                channels = (level + 1) * D
        self.down, self.up = nnx.List(down), nnx.List(up)
        self.norm = parameter(rngs, (channels,), (None,), constant=1.0)
        self.head = parameter(rngs, (3, 3, channels, A), (None, None, "width", None), constant=0.0)

    def __call__(
        self, noisy: Float[Array, "B S S A"], time: Float[Array, " B"], text: Int[Array, "B L"]
    ) -> Float[Array, "B S S A"]:
        """The velocity at a time between 0 (the picture) and 1 (noise)."""
        words, embedding = self.condition(time, text)
        x = convolve(noisy.astype(words.dtype), self.stem[...])
        skips, per_level = [], self.config.blocks
        for number, layer in enumerate(self.down):
            if number and number % per_level == 0:
                x = halve(x)
            with jax.named_scope(f"down.{number}"):
                x = checkpointed(layer, self.compute)(x, embedding, words)
            skips.append(x)
        with jax.named_scope("middle"):
            x = checkpointed(self.middle, self.compute)(x, embedding, words)
        for number, layer in enumerate(self.up):
            if number and number % per_level == 0:
                x = double(x)
            with jax.named_scope(f"up.{number}"):
                x = checkpointed(layer, self.compute)(jnp.concatenate([x, skips.pop()], axis=-1), embedding, words)
        return convolve(jax.nn.silu(group_norm(x, self.norm[...])), self.head[...]).astype(jnp.float32)

    def condition(
        self, time: Float[Array, " B"], text: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L W"], Float[Array, "B E"]]:
        """The text byte by byte, and one embedding of the noise level and the whole text."""
        words = by_example(look_up(self.text_embedding[...], text)) + self.text_positions[...]
        with jax.named_scope("text"):
            words = layer_norm(run_layers(self.text_blocks, words, compute=self.compute), self.text_norm[...])
        waves = by_example(sinusoids(time, self.config.width).astype(words.dtype) @ self.noise_in[...])
        pooled = by_example(words.mean(axis=1) @ self.text_pooled[...])
        return words, jax.nn.silu(by_example(jax.nn.silu(waves) @ self.noise_out[...]) + pooled)


class Layer(nnx.Module):
    """A residual block; on the coarsest levels attention to all pixels and to the text as well."""

    def __init__(self, config: DiffusionConfig, channels: int, level: int, compute: Compute, rngs: Keys) -> None:
        out, E = (level + 1) * config.width, EMBEDDING * config.width
        self.first_norm = parameter(rngs, (channels,), (None,), constant=1.0)
        self.first = parameter(
            rngs, (3, 3, channels, out), (None, None, None, "width"), deviation=(9 * channels) ** -0.5
        )
        self.shift = parameter(rngs, (E, 2, out), (None, None, "width"), deviation=E**-0.5)
        self.second_norm = parameter(rngs, (out,), (None,), constant=1.0)
        self.second = parameter(rngs, (3, 3, out, out), (None, None, None, "width"), deviation=0.5 * (9 * out) ** -0.5)
        self.skip = (
            parameter(rngs, (1, 1, channels, out), (None, None, None, "width"), deviation=channels**-0.5)
            if channels != out
            else None
        )
        attends = level >= config.levels - config.attention_levels
        self.attention = Attention(config, out, compute, rngs) if attends else None

    def __call__(
        self, x: Float[Array, "B X Y I"], embedding: Float[Array, "B E"], words: Float[Array, "B L W"]
    ) -> Float[Array, "B X Y O"]:
        """One layer, down or up."""
        h = convolve(jax.nn.silu(group_norm(x, self.first_norm[...])), self.first[...])
        scale, shift = by_example(jnp.einsum("be,eco->cbo", embedding, self.shift[...]), 1)[:, :, None, None, :]
        h = group_norm(h, self.second_norm[...]) * (1 + scale) + shift
        h = convolve(jax.nn.silu(h), self.second[...])
        x = h + (x if self.skip is None else convolve(x, self.skip[...]))
        return x if self.attention is None else x + self.attention(x, words)


class Attention(nnx.Module):
    """Each pixel looks at all pixels and at the text."""

    def __init__(self, config: DiffusionConfig, channels: int, compute: Compute, rngs: Keys) -> None:
        self.how = compute.attention
        H, W = config.heads, config.text_width
        K = channels // H
        self.norm = parameter(rngs, (channels,), (None,), constant=1.0)
        self.qkv = parameter(rngs, (channels, 3, H, K), ("width", None, None, None), deviation=channels**-0.5)
        self.text = parameter(rngs, (W, 2, H, K), ("width", None, None, None), deviation=W**-0.5)
        self.projection = parameter(rngs, (H, K, channels), (None, None, "width"), deviation=0.5 * channels**-0.5)

    def __call__(self, x: Float[Array, "B X Y O"], words: Float[Array, "B L W"]) -> Float[Array, "B X Y O"]:
        """What is added to the pixels."""
        pixels = group_norm(x, self.norm[...]).reshape(x.shape[0], -1, x.shape[-1])
        q, k, v = jnp.einsum("bpo,ochk->cbhpk", pixels, self.qkv[...])
        text = jnp.einsum("blw,wchk->cbhlk", words, self.text[...])
        k, v = jnp.concatenate([k, text[0]], axis=2), jnp.concatenate([v, text[1]], axis=2)
        return jnp.einsum("bhpk,hko->bpo", attend(q, k, v, how=self.how), self.projection[...]).reshape(x.shape)


def by_example(x: Array, axis: int = 0) -> Array:
    """Says that an embedding is split by example, whose dimension is `axis`, and not by number.

    Left to itself XLA gives it the split over fsdp of the weights that made it, and then has to move every number:
    the pixels that it is added to are split by example ("involuntary full rematerialization").
    """
    mesh = active_mesh()
    kept: Array = x if mesh is None or mesh.shape["fsdp"] == 1 else keep_rows_whole(x, axis)
    return kept


def group_norm(x: Float[Array, "B X Y I"], scale: Float[Array, " I"]) -> Float[Array, "B X Y I"]:
    """Zero mean and unit variance over the pixels and `GROUP` channels, then a learned scale (Wu and He 2018)."""
    y = x.astype(jnp.float32).reshape(x.shape[0], -1, x.shape[-1] // GROUP, GROUP)
    y = y - y.mean(axis=(1, 3), keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(axis=(1, 3), keepdims=True) + 1e-5)
    return y.reshape(x.shape).astype(x.dtype) * scale


def convolve(x: Float[Array, "B X Y I"], kernel: Float[Array, "R C I O"]) -> Float[Array, "B X Y O"]:
    """A convolution that keeps the number of pixels."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def halve(x: Float[Array, "B X Y I"]) -> Float[Array, "B X/2 Y/2 I"]:
    """The mean of each square of four pixels."""
    B, X, Y, channels = x.shape
    return x.reshape(B, X // 2, 2, Y // 2, 2, channels).mean(axis=(2, 4))


def double(x: Float[Array, "B X Y I"]) -> Float[Array, "B 2*X 2*Y I"]:
    """Each pixel as a square of four."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def sinusoids(time: Float[Array, " B"], width: int) -> Float[Array, "B D"]:
    """Sines and cosines of the time, with 1 to 1,000 radians from 0 to 1."""
    angles = time[:, None] * jnp.exp(jnp.linspace(0.0, jnp.log(1000.0), width // 2))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def mix(time: Float[Array, " B"]) -> tuple[Float[Array, "B 1 1 1"], Float[Array, "B 1 1 1"]]:
    """How much of the picture and how much noise there is at a time; their squares add up to one."""
    angle = time[:, None, None, None] * (jnp.pi / 2)
    return jnp.cos(angle), jnp.sin(angle)


def measure(model: UNet, batch: Mapping[str, Array]) -> dict[str, Float[Array, ""]]:
    """The mean squared error of the velocity as `loss`, and the same with another picture's text as `wrong_text_loss`.

    Noise, time and which texts are withheld come from the `key` of each example.
    """
    config, picture = model.config, brightness(batch["image"])
    picture = picture.reshape(len(picture), *_shape(config))

    def draw(key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        first, second, third = jax.random.split(key, 3)
        return jax.random.normal(first, _shape(config)), jax.random.uniform(second), jax.random.uniform(third)

    noise, time, chance = jax.vmap(draw)(jax.random.wrap_key_data(batch["key"]))
    much, little = mix(time)
    noisy, velocity = much * picture + little * noise, much * noise - little * picture

    def error(text: Int[Array, "B L"]) -> Float[Array, ""]:
        text = jnp.where((chance < config.unconditional)[:, None], 0, text)
        return jnp.square(model(noisy, time, text) - velocity).mean()

    return {"loss": error(batch["text"]), "wrong_text_loss": error(jnp.roll(batch["text"], 1, axis=0))}


def sample(
    model: UNet, text: Int[Array, "B L"], key: PRNGKeyArray, *, steps: int, guidance: float
) -> Float[Array, "B S S A"]:
    """Draws a picture for each text, by the deterministic sampler (Song et al. 2021, DDIM).

    Args:
        model: trained.
        text: bytes, filled up with zeros.
        key: of the noise that it starts from.
        steps: calls of the model, each with and without the text.
        guidance: 0 ignores the text, 1 follows the model, more follows the text more closely.
    """

    def step(number: Int[Array, ""], noisy: Float[Array, "B S S A"]) -> Float[Array, "B S S A"]:
        now, later = (jnp.full(len(text), 1 - (number + n) / steps) for n in (0, 1))
        without, given = model(noisy, now, jnp.zeros_like(text)), model(noisy, now, text)
        velocity = without + guidance * (given - without)
        (much, little), (more, less) = mix(now), mix(later)
        picture = jnp.clip(much * noisy - little * velocity, -1, 1)
        return more * picture + less * (little * noisy + much * velocity)

    start = jax.random.normal(key, (len(text), *_shape(model.config)))
    drawn: Array = jax.lax.fori_loop(0, steps, step, start)
    return drawn


def _shape(config: DiffusionConfig) -> tuple[int, int, int]:
    return config.image, config.image, config.channels
