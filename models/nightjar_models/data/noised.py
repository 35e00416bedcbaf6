"""Inputs of generative models besides images: a random key per example, the digit's name, and trivial scores.

In: the digits. Out: the same examples with `key` uint32 [2], from which the model draws its noise on the device, and
`text` int32 [length], the bytes of the digit's English name. A key belongs to its example: which device computes it, or
at which place of the batch it is, does not change its noise. Held-out examples have fixed keys.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from nightjar_models.data.digits import HELD_OUT, Digits, split
from nightjar_models.data.pipeline import Data, Example, Examples, Index
from nightjar_models.errors import InputError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Keyed(Examples):
    """Examples with their number as `key`, and with the name of their label as `text` if a length is given."""

    def __init__(self, examples: Examples, text_length: int | None) -> None:
        self._examples, self._texts = examples, None if text_length is None else spell(text_length)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: Index) -> Example:
        """One example or several."""
        example = self._examples[index]
        text = {} if self._texts is None else {"text": self._texts[example["label"]]}
        key = np.zeros((*np.shape(index), 2), np.uint32)
        key[..., 1] = index
        return {**example, **text, "key": key}


def add_keys(digits: Digits, side: int) -> Data:
    """Digits as they are, each with a key; the trivial score guesses the ink of each pixel by its frequency."""
    ink = (digits.flatten() > 0).astype(np.float64)
    trivial = pixel_loss(ink[:-HELD_OUT], ink[-HELD_OUT:]) * side * side / ink.shape[1]
    return _with_keys(split(digits, side), None, {"pixel_loss": trivial})


def add_names(digits: Digits, side: int, channels: int, text_length: int) -> Data:
    """Digits with their names, each with a key; the trivial score is the best linear denoiser's."""
    flat = digits.flatten()
    copies = side * side * channels / flat.shape[1]
    trivial = linear_loss(flat[:-HELD_OUT], flat[-HELD_OUT:], copies)
    return _with_keys(split(digits, side, channels), text_length, {"linear_loss": trivial})


def spell(length: int) -> NDArray[np.int32]:
    """The bytes of the ten names, filled up with zeros."""
    if length < (longest := max(map(len, NAMES))):
        raise InputError(f"model.text_length: expected at least {longest} (the longest name), found {length}.")
    return np.array([list(name.encode().ljust(length, b"\0")) for name in NAMES], np.int32)


def draw_keys(example: Example, rng: np.random.Generator) -> Example:
    """A new key for each time that an example is seen."""
    return {**example, "key": rng.integers(0, 2**32, size=2, dtype=np.uint32)}


def pixel_loss(train: NDArray[np.float64], held_out: NDArray[np.float64]) -> float:
    """Nats per image when each pixel's ink is guessed by its frequency in `train`."""
    mean = np.clip(train.mean(axis=0), 1e-3, 1 - 1e-3)
    return float(-(held_out * np.log(mean) + (1 - held_out) * np.log1p(-mean)).sum(axis=1).mean())


def linear_loss(train: NDArray[np.float64], held_out: NDArray[np.float64], copies: float) -> float:
    """Mean squared error of the best linear guess of the velocity, over all times alike.

    Where each number is there `copies` times, as in a larger image, the noise that differs between them is known.

    Along an eigenvector of the covariance, with variance `l` in `train`, the guess from `c * x + s * e` is that times
    `c * s * (1 - l) / (c * c * l + s * s)`; its error is taken with the spread of `held_out`.
    """
    mean = train.mean(axis=0)
    variance, directions = np.linalg.eigh(np.cov(train, rowvar=False))
    spread = copies * np.square((held_out - mean) @ directions).mean(axis=0)
    variance = copies * variance
    angle = (np.arange(256) + 0.5)[:, None] / 256 * np.pi / 2
    c, s = np.cos(angle), np.sin(angle)
    guess = c * s * (1 - variance) / (c * c * variance + s * s)
    return float((np.square(s + guess * c) * spread + np.square(c - guess * s)).mean() / copies)


def _with_keys(data: Data, text_length: int | None, trivial: dict[str, float]) -> Data:
    train, held_out = Keyed(data.train, text_length), Keyed(data.held_out, text_length)
    return dataclasses.replace(data, train=train, held_out=held_out, augment=draw_keys, trivial=trivial)
