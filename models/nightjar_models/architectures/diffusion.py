"""A text-conditioned diffusion U-Net, top to bottom.

In: noisy images, how noisy they are, and text as bytes. Out: the velocity that leads back to the picture; `sample`
draws pictures with classifier-free guidance.

Dimensions: B batch, S side of the image, A channels, L bytes of the text, W width of the text, E width of the
embedding of noise and text, X x Y pixels of a level, P of them, I channels in, O channels out, H heads, K width of a
head. Each initializer names the mesh axes over which its parameter is split.

Source: Saharia et al. 2022, "Photorealistic Text-to-Image Diffusion Models" (Imagen: pixels, text both pooled and
attended to, keys of text and pixels side by side); Salimans and Ho 2022 (velocity, cosine schedule); Ho and Salimans
2022 (guidance). Unlike Imagen: the text encoder is small and trained along, and there is no super-resolution; the
ecosystem's cell `imagen` has both, with T5's encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from nightjar_models.architectures.layers import EPSILON, MATRIX, attend, brightness
from nightjar_models.architectures.stack import checkpointed, run_layers, stack_layers
from nightjar_models.architectures.transformer import Block
from nightjar_models.parallel.sharding import active_mesh, keep_rows_whole, partitioned
from nightjar_models.presets.config import DTYPES, Compute
from nightjar_models.presets.sizes import DiffusionConfig, GPTConfig

EMBEDDING = 4  # times the width at full resolution: how wide the embedding of noise and text is
GROUP = 8  # channels that are normalised together
QUARTER = nnx.initializers.variance_scaling(0.25, "fan_in", "normal")  # of maps whose result is added to the pixels
WORDS = nnx.initializers.normal(0.5)


class UNet(nnx.Module):
    """Text encoder, embedding of the noise level, blocks down to the coarsest level and up again."""

    def __init__(self, config: DiffusionConfig, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.config, self.compute = config, compute
        A, D, W, L = config.channels, config.width, config.text_width, config.text_length
        E, dtype = EMBEDDING * D, DTYPES[compute.dtype]
        self.text_embedding = nnx.Embed(config.vocabulary, W, dtype=dtype, embedding_init=WORDS, rngs=rngs)
        self.text_positions = nnx.Param(WORDS(rngs.params(), (L, W)))
        sizes = GPTConfig(length=L, width=W, layers=config.text_layers, heads=config.heads, feed_forward=4 * W)
        self.text_blocks = stack_layers(
            lambda rngs: Block(sizes, compute, causal=False, rngs=rngs), config.text_layers, compute, rngs
        )
        self.text_norm = nnx.LayerNorm(W, epsilon=EPSILON, dtype=dtype, rngs=rngs)
        self.text_pooled = _linear(W, E, compute, rngs)
        self.noise = nnx.Sequential(_linear(D, E, compute, rngs), by_example, nnx.silu, _linear(E, E, compute, rngs))
        self.stem = convolution(A, D, 3, compute, rngs)
        down, up, skips, channels = [], [], [D], D
        for level in range(config.levels):
            for _ in range(config.blocks):
                down.append(Layer(config, channels, level, compute, rngs=rngs))
                channels = (level + 1) * D
                skips.append(channels)
        self.middle = Layer(config, channels, config.levels - 1, compute, rngs=rngs)
        for level in reversed(range(config.levels)):
            for _ in range(config.blocks):
                up.append(Layer(config, channels + skips.pop(), level, compute, rngs=rngs))
                channels = (level + 1) * D
        self.down, self.up = nnx.List(down), nnx.List(up)
        self.norm = group_norm(channels, compute, rngs)
        zeros = partitioned(nnx.initializers.zeros_init(), (None, None, "fsdp", None))
        self.head = nnx.Conv(channels, A, (3, 3), dtype=dtype, kernel_init=zeros, rngs=rngs)

    def __call__(
        self, noisy: Float[Array, "B S S A"], time: Float[Array, " B"], text: Int[Array, "B L"]
    ) -> Float[Array, "B S S A"]:
        """The velocity at a time between 0 (the picture) and 1 (noise)."""
        words, embedding = self.condition(time, text)
        run = checkpointed(self.compute)
        x = self.stem(noisy)
        skips, per_level = [], self.config.blocks
        for number, layer in enumerate(self.down):
            if number and number % per_level == 0:
                x = nnx.avg_pool(x, (2, 2), (2, 2))  # type: ignore[no-untyped-call]
            with jax.named_scope(f"down.{number}"):
                x = run(layer, x, embedding, words)
            skips.append(x)
        with jax.named_scope("middle"):
            x = run(self.middle, x, embedding, words)
        for number, layer in enumerate(self.up):
            if number and number % per_level == 0:
                B, X, Y, channels = x.shape
                x = jax.image.resize(x, (B, 2 * X, 2 * Y, channels), "nearest")
            with jax.named_scope(f"up.{number}"):
                x = run(layer, jnp.concatenate([x, skips.pop()], axis=-1), embedding, words)
        return self.head(nnx.silu(self.norm(x))).astype(jnp.float32)

    def condition(
        self, time: Float[Array, " B"], text: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L W"], Float[Array, "B E"]]:
        """The text byte by byte, and one embedding of the noise level and the whole text."""
        words = by_example(self.text_embedding(text))
        words = words + self.text_positions[...].astype(words.dtype)
        with jax.named_scope("text"):
            words = self.text_norm(run_layers(self.text_blocks, words, compute=self.compute))
        noise = by_example(self.noise(sinusoids(time, self.config.width)))
        return words, nnx.silu(noise + by_example(self.text_pooled(words.mean(axis=1))))


class Layer(nnx.Module):
    """A residual block; on the coarsest levels attention to all pixels and to the text as well."""

    def __init__(self, config: DiffusionConfig, channels: int, level: int, compute: Compute, *, rngs: nnx.Rngs) -> None:
        out = (level + 1) * config.width
        self.first_norm = group_norm(channels, compute, rngs)
        self.first = convolution(channels, out, 3, compute, rngs)
        self.shift = _linear(EMBEDDING * config.width, 2 * out, compute, rngs)
        self.second_norm = group_norm(out, compute, rngs)
        self.second = convolution(out, out, 3, compute, rngs, QUARTER)
        self.skip = convolution(channels, out, 1, compute, rngs) if channels != out else None
        attends = level >= config.levels - config.attention_levels
        self.attention = Attention(config, out, compute, rngs=rngs) if attends else None

    def __call__(
        self, x: Float[Array, "B X Y I"], embedding: Float[Array, "B E"], words: Float[Array, "B L W"]
    ) -> Float[Array, "B X Y O"]:
        """One layer, down or up."""
        h = self.first(nnx.silu(self.first_norm(x)))
        scale, shift = jnp.split(by_example(self.shift(embedding))[:, None, None, :], 2, axis=-1)
        h = self.second(nnx.silu(self.second_norm(h) * (1 + scale) + shift))
        x = h + (x if self.skip is None else self.skip(x))
        if self.attention is None:
            return x
        return x + self.attention(x, words)


class Attention(nnx.Module):
    """Each pixel looks at all pixels and at the text."""

    def __init__(self, config: DiffusionConfig, channels: int, compute: Compute, *, rngs: nnx.Rngs) -> None:
        self.how = compute.attention
        heads = config.heads, channels // config.heads

        def project(size: int) -> nnx.LinearGeneral:
            split = partitioned(MATRIX, ("fsdp", None, None))
            return nnx.LinearGeneral(size, heads, dtype=DTYPES[compute.dtype], kernel_init=split, rngs=rngs)

        self.norm = group_norm(channels, compute, rngs)
        self.query, self.key, self.value = project(channels), project(channels), project(channels)
        self.text_key, self.text_value = project(config.text_width), project(config.text_width)
        self.out = nnx.LinearGeneral(
            heads,
            channels,
            axis=(-2, -1),
            dtype=DTYPES[compute.dtype],
            kernel_init=partitioned(QUARTER, (None, None, "fsdp")),
            rngs=rngs,
        )

    def __call__(self, x: Float[Array, "B X Y O"], words: Float[Array, "B L W"]) -> Float[Array, "B X Y O"]:
        pixels = self.norm(x).reshape(x.shape[0], -1, x.shape[-1])
        key = jnp.concatenate([self.key(pixels), self.text_key(words)], axis=1)
        value = jnp.concatenate([self.value(pixels), self.text_value(words)], axis=1)
        return self.out(attend(self.query(pixels), key, value, how=self.how)).reshape(x.shape)


def by_example(x: Array) -> Array:
    """Says that an embedding is split by example and not by number.

    Left to itself XLA gives it the split over fsdp of the weights that made it, and then has to move every number:
    the pixels that it is added to are split by example ("involuntary full rematerialization").
    """
    mesh = active_mesh()
    kept: Array = x if mesh is None or mesh.shape["fsdp"] == 1 else keep_rows_whole(x)
    return kept


def group_norm(channels: int, compute: Compute, rngs: nnx.Rngs) -> nnx.GroupNorm:
    """Zero mean and unit variance over the pixels and `GROUP` channels, then scale and bias (Wu and He 2018)."""
    options: dict[str, Any] = {"num_groups": None, "group_size": GROUP, "epsilon": EPSILON}
    return nnx.GroupNorm(channels, dtype=DTYPES[compute.dtype], rngs=rngs, **options)


def convolution(
    channels: int, out: int, side: int, compute: Compute, rngs: nnx.Rngs, init: nnx.Initializer = MATRIX
) -> nnx.Conv:
    """A convolution that keeps the number of pixels."""
    split = partitioned(init, (None, None, None, "fsdp"))
    return nnx.Conv(channels, out, (side, side), dtype=DTYPES[compute.dtype], kernel_init=split, rngs=rngs)


def _linear(size: int, out: int, compute: Compute, rngs: nnx.Rngs) -> nnx.Linear:
    split = partitioned(MATRIX, (None, "fsdp"))
    return nnx.Linear(size, out, dtype=DTYPES[compute.dtype], kernel_init=split, rngs=rngs)


def sinusoids(time: Float[Array, " B"], width: int) -> Float[Array, "B D"]:
    """Sines and cosines of the time, with 1 to 1,000 radians from 0 to 1."""
    angles = time[:, None] * jnp.exp(jnp.linspace(0.0, jnp.log(1000.0), width // 2))
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def mix(time: Float[Array, " B"]) -> tuple[Float[Array, "B 1 1 1"], Float[Array, "B 1 1 1"]]:
    """How much of the picture and how much noise there is at a time; their squares add up to one."""
    angle = time[:, None, None, None] * (jnp.pi / 2)
    return jnp.cos(angle), jnp.sin(angle)


def measure(model: UNet, batch: Mapping[str, Array]) -> dict[str, Float[Array, " B"]]:
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

    def error(text: Int[Array, "B L"]) -> Float[Array, " B"]:
        text = jnp.where((chance < config.unconditional)[:, None], 0, text)
        return jnp.square(model(noisy, time, text) - velocity).mean(axis=(1, 2, 3))

    return {"loss": error(batch["text"]), "wrong_text_loss": error(jnp.roll(batch["text"], 1, axis=0))}


def sample(
    model: UNet, text: Int[Array, "B L"], key: PRNGKeyArray, *, steps: int, guidance: float
) -> Float[Array, "B S S A"]:
    """Draws a picture for each text, by the deterministic sampler (Song et al. 2021, DDIM).

    Args:
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
