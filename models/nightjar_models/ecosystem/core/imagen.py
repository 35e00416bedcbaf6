"""Imagen cell: text through T5's encoder, a base model, and super-resolution, of handwritten digits.

The base model draws 4x4 pixels from a digit's name, a second U-Net draws 8x8 from these and the name. It was trained
with noise in its input, since the base model's images are not perfect. A classifier that saw nothing but real
digits reads what was drawn; 4x4 pixels that are only enlarged it reads worse.

Source: Saharia et al. 2022, "Photorealistic Text-to-Image Diffusion Models"; the U-Net and the T5 of
`nightjar_models/architectures`.
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

SMALL, LARGE, STEPS, BATCH, DRAWN = 4, 8, 220, 32, 200
NOISE = 0.2  # in the picture to be enlarged
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def run() -> Finding:
    """Runs the cell."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    from nightjar_models.architectures.diffusion import UNet, measure, sample, sinusoids
    from nightjar_models.architectures.t5 import T5
    from nightjar_models.presets.config import Compute
    from nightjar_models.presets.sizes import DiffusionConfig, T5Config

    text_sizes = {"vocabulary": 128, "length": 8, "target_length": 1, "width": 32, "layers": 1}
    sizes = T5Config(**text_sizes, heads=4, head_width=8, feed_forward=64)

    class Stage(UNet):
        """The U-Net, with T5's encoder in place of its own."""

        def __init__(self, config, rngs):
            super().__init__(config, Compute(), rngs=rngs)
            self.t5 = T5(sizes, Compute(), rngs=rngs)

        def condition(self, time, text):
            words, _ = self.t5.encode(text)
            noise = self.noise(sinusoids(time, self.config.width))
            return words, nnx.silu(noise + self.text_pooled(words.mean(axis=1)))

    class Enlarger:
        """A stage that is shown a small picture as a second channel, as a model of the first channel."""

        def __init__(self, stage, small):
            self.stage, self.config = stage, dataclasses.replace(stage.config, channels=1)
            self.shown = resize(small, LARGE)

        def __call__(self, noisy, time, text):
            return self.stage(jnp.concatenate([noisy, self.shown], axis=-1), time, text)[..., :1]

    def resize(pictures, side):
        return jax.image.resize(pictures, (len(pictures), side, side, 1), "linear")

    def config(side, channels, width):
        options = {"levels": 2, "blocks": 1, "heads": 4, "text_width": 32, "text_layers": 1}
        return DiffusionConfig(image=side, channels=channels, width=width, **options)

    digits = load_digits()
    pictures = jnp.asarray(digits.images[..., None] / 8 - 1, jnp.float32)
    small = resize(pictures, SMALL)
    names = np.array([list(name.ljust(8, "\0").encode()) for name in NAMES], np.int32)
    base, large = Stage(config(SMALL, 1, 16), nnx.Rngs(0)), Stage(config(LARGE, 2, 16), nnx.Rngs(1))
    schedule = optax.cosine_decay_schedule(3e-3, STEPS)
    optimizers = [nnx.Optimizer(stage, optax.adam(schedule), wrt=nnx.Param) for stage in (base, large)]

    def loss(stage, batch, shown):
        model = stage if shown is None else Enlarger(stage, shown)
        return measure(model, batch)["loss"].mean()  # type: ignore[arg-type]  # a function of the same arguments

    @nnx.jit
    def train(base, large, optimizers, rows, key):
        keys = jax.random.key_data(jax.random.split(key, BATCH))
        text = jnp.asarray(names)[jnp.asarray(digits.target)[rows]]
        shown = small[rows] + NOISE * jax.random.normal(key, small[rows].shape)
        todo = ((base, small[rows], None), (large, pictures[rows], shown))
        for (stage, image, given), optimizer in zip(todo, optimizers, strict=True):
            gradients = nnx.grad(loss)(stage, {"image": image, "text": text, "key": keys}, given)
            optimizer.update(stage, gradients)
        return optimizers[0].step[...]

    rng = np.random.default_rng(0)

    def one_step():
        rows = rng.integers(0, len(pictures), BATCH)
        return train(base, large, optimizers, rows, jax.random.key(int(rng.integers(2**31))))

    samples = time_calls(one_step, items=BATCH, unit="pictures/s", calls=STEPS - 1)
    wanted = np.arange(DRAWN) % 10
    text = jnp.asarray(names)[wanted]
    drawn = nnx.jit(lambda base: sample(base, text, jax.random.key(1), steps=20, guidance=2.0))(base)

    @nnx.jit
    def enlarge(large):
        return sample(Enlarger(large, drawn), text, jax.random.key(2), steps=20, guidance=2.0)  # type: ignore[arg-type]

    flat = np.asarray(pictures).reshape(len(pictures), -1)
    reader = LogisticRegression(max_iter=1000).fit(flat, digits.target)
    read = {
        name: float(reader.score(np.asarray(jnp.clip(shown, -1, 1)).reshape(DRAWN, -1), wanted))
        for name, shown in (("enlarged", resize(drawn, LARGE)), ("cascade", enlarge(large)))
    }
    gain = read["cascade"] - read["enlarged"]
    return Finding(
        checks=[
            Check(name="read", value=read["cascade"], expected=1, tolerance=0.15, why="drawn by name"),
            Check(name="gain", value=gain, expected=0.3, tolerance=0.25, why="over pixels only enlarged"),
        ],
        samples=samples,
    )
