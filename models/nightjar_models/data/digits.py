"""Which images does every environment have? scikit-learn's 1,797 handwritten digits of 8x8 pixels.

In: the installed scikit-learn. Out: images in [-1, 1] and labels; the last 384 are held out. They were written by other
people than the first ones, so held-out accuracy speaks of new hands. Larger images are the same with larger pixels.

Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from nightjar_models.data.pipeline import BRIGHTEST, Data, Example, Index, digest

HELD_OUT = 384
BACKGROUND = -1.0
SIDE = 8
# Bytes of larger images up to which they are made once: a batch of 256 of 64x64 pixels takes 0.04 ms and not 0.15.
KEPT_LARGE = 2**25


class Images:
    """Images with their labels.

    Args:
        images: float32 [n, 8, 8].
        labels: int32 [n].
        side: pixels along each side of what is handed out.
        channels: one for grey images without a dimension of channels; more repeat the grey one.
    """

    def __init__(self, images: NDArray[np.float32], labels: NDArray[np.int32], side: int, channels: int) -> None:
        self._labels, self._shape = labels, (side, side, channels) if channels > 1 else (side, side)
        is_small = side == SIDE and channels == 1
        self._images = images if is_small else ((images + 1) * (BRIGHTEST / 2)).astype(np.uint8)
        self._rows = np.arange(side) * SIDE // side
        self._columns = np.repeat(self._rows, channels)
        self._is_ready = is_small
        if not is_small and len(images) * side * side * channels <= KEPT_LARGE:
            self._images, self._is_ready = self._enlarge(self._images), True

    def __len__(self) -> int:
        """How many there are."""
        return len(self._images)

    def __getitem__(self, index: Index) -> Example:
        """One image or several: `image` [..., side, side] or [..., side, side, channels], and `label` int32.

        As scanned they are float32 in [-1, 1]; larger or in colour they are uint8 up to `BRIGHTEST`.
        """
        image = self._images[index]
        return {"image": image if self._is_ready else self._enlarge(image), "label": self._labels[index]}

    def _enlarge(self, images: NDArray[Any]) -> NDArray[Any]:
        larger = images.take(self._columns, axis=-1).take(self._rows, axis=-2)
        return larger.reshape(*images.shape[:-2], *self._shape)


def read_digits(side: int = SIDE, channels: int = 1) -> Data:
    """The digits, split by position."""
    images, labels = load()
    counts = np.bincount(labels[:-HELD_OUT], minlength=10)
    return Data(
        train=Images(images[:-HELD_OUT], labels[:-HELD_OUT], side, channels),
        held_out=Images(images[-HELD_OUT:], labels[-HELD_OUT:], side, channels),
        augment=shift,
        digest=digest(images, labels),
        trivial={"majority_accuracy": float((labels[-HELD_OUT:] == counts.argmax()).mean())},
    )


def load() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """All images in [-1, 1] and their labels, as they were scanned."""
    found: Any = load_digits()
    return (found.images / (BRIGHTEST / 2) - 1).astype(np.float32), found.target.astype(np.int32)


def shift(batch: Example, rng: np.random.Generator) -> Example:
    """Moves each image by up to one pixel each way; without it the model learns the 1,413 training images by heart."""
    images = batch["image"]
    count, rows, columns, *channels = images.shape
    down, right = rng.integers(0, 3, size=(2, count, 1))
    background = 0 if images.dtype == np.uint8 else BACKGROUND
    padded = np.full((count, rows + 2, columns + 2, *channels), background, images.dtype)
    padded[:, 1:-1, 1:-1] = images
    pixel = math.prod(channels) * images.itemsize
    cut = f"V{columns * pixel}"  # a row of the image, of which each padded one holds three
    cuts: NDArray[np.void] = np.ndarray((count, rows + 2, 3), cut, padded, strides=(*padded.strides[:2], pixel))
    moved = cuts[np.arange(count)[:, None], down + np.arange(rows), right]
    return {**batch, "image": moved.view(images.dtype).reshape(images.shape)}
