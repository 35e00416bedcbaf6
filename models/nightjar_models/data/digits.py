"""Which images does every environment have? scikit-learn's 1,797 handwritten digits of 8x8 pixels.

In: the installed scikit-learn. Out: images in [-1, 1] and labels; the last 384 are held out. They were written by other
people than the first ones, so held-out accuracy speaks of new hands.

Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from nightjar_models.data.pipeline import Data, Example, digest

HELD_OUT = 384
BACKGROUND = -1.0
_BRIGHTEST = 16.0


class Images:
    """Images with their labels."""

    def __init__(self, images: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        """How many there are."""
        return len(self._images)

    def __getitem__(self, index: int) -> Example:
        """One image: `image` float32 [8, 8] and `label` int32."""
        return {"image": self._images[index], "label": self._labels[index]}


def read_digits() -> Data:
    """The digits, split by position."""
    found: Any = load_digits()
    images = (found.images / (_BRIGHTEST / 2) - 1).astype(np.float32)
    labels = found.target.astype(np.int32)
    counts = np.bincount(labels[:-HELD_OUT], minlength=10)
    return Data(
        train=Images(images[:-HELD_OUT], labels[:-HELD_OUT]),
        held_out=Images(images[-HELD_OUT:], labels[-HELD_OUT:]),
        augment=shift,
        digest=digest(images, labels),
        trivial={"majority_accuracy": float((labels[-HELD_OUT:] == counts.argmax()).mean())},
    )


def shift(example: Example, rng: np.random.Generator) -> Example:
    """Moves the image by up to one pixel each way; without it the model learns the 1,413 training images by heart."""
    down, right = rng.integers(0, 3, size=2)
    padded = np.pad(example["image"], 1, constant_values=BACKGROUND)
    rows, columns = example["image"].shape
    return {**example, "image": padded[down : down + rows, right : right + columns]}
