"""Handwritten digits: scikit-learn's 1,797 of 8x8 pixels, which every environment has.

In: the installed scikit-learn. Out: images and labels. The last 384, which are held out, were written by other people
than the first ones, so held-out accuracy measures new writers. Larger images are the same with larger pixels.

Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_models.data.pipeline import BRIGHTEST, Data, Example, Examples, Index, digest
from nightjar_models.errors import NightjarError

HELD_OUT = 384
BACKGROUND = -1.0
SIDE = 8
# Bytes of larger images up to which they are made once: a batch of 256 of 64x64 pixels takes 0.04 ms and not 0.15.
KEPT_LARGE = 2**25


@dataclasses.dataclass(frozen=True, slots=True)
class Digits:
    """Digits as they were scanned.

    Attributes:
        images: float32 [n, side, side] in [-1, 1].
        labels: int32 [n].
    """

    images: NDArray[Any]
    labels: NDArray[np.int32]

    def flatten(self) -> NDArray[np.float64]:
        return self.images.reshape(len(self.images), -1).astype(np.float64)


class Images(Examples):
    """Images with their labels.

    Args:
        side: pixels along each side of the images handed out.
        channels: one for grey images without a dimension of channels; more repeat the grey one.
    """

    def __init__(self, images: NDArray[Any], labels: NDArray[np.int32], side: int, channels: int) -> None:
        self._labels, self._shape = labels, (side, side, channels) if channels > 1 else (side, side)
        scanned = images.shape[-1]
        is_small = side == scanned and channels == 1
        self._images = images if is_small else ((images + 1) * (BRIGHTEST / 2)).astype(np.uint8)
        self._rows = np.arange(side) * scanned // side
        self._columns = np.repeat(self._rows, channels)
        self._is_ready = is_small
        if not is_small and len(images) * side * side * channels <= KEPT_LARGE:
            self._images, self._is_ready = self._enlarge(self._images), True

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Index) -> Example:
        """One image or several: `image` [..., side, side] or [..., side, side, channels], and `label` int32.

        As scanned float32 in [-1, 1] is handed out; larger or in colour as uint8 up to `BRIGHTEST`.
        """
        image = self._images[index]
        return {"image": image if self._is_ready else self._enlarge(image), "label": self._labels[index]}

    def _enlarge(self, images: NDArray[Any]) -> NDArray[Any]:
        larger: NDArray[Any] = images.take(self._columns, axis=-1).take(self._rows, axis=-2)
        return larger.reshape(*images.shape[:-2], *self._shape)


def split(digits: Digits, side: int, channels: int = 1) -> Data:
    """Digits as squares of that side, the last ones held out."""
    images, labels, cut = digits.images, digits.labels, len(digits.labels) - HELD_OUT
    counts = np.bincount(labels[:cut], minlength=10)
    return Data(
        train=Images(images[:cut], labels[:cut], side, channels),
        held_out=Images(images[cut:], labels[cut:], side, channels),
        augment=shift,
        digest=digest(images, labels),
        trivial={"majority_accuracy": float((labels[cut:] == counts.argmax()).mean())},
    )


def load() -> Digits:
    """All digits."""
    path = Path(str(importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))
    try:
        table = np.loadtxt(path, delimiter=",")  # to import scikit-learn takes as long as to import JAX
    except OSError as error:
        raise NightjarError(f"{path}: {error}.", "reinstall scikit-learn from its wheel") from None
    images = (table[:, :-1].reshape(-1, SIDE, SIDE) / (BRIGHTEST / 2) - 1).astype(np.float32)
    return Digits(images, table[:, -1].astype(np.int32))


def shift(example: Example, rng: np.random.Generator) -> Example:
    """Moves an image by up to one pixel each way; without it the model learns the training images by heart."""
    image = example["image"]
    rows, columns, *channels = image.shape
    background = np.iinfo(image.dtype).min if image.dtype.kind in "ui" else BACKGROUND
    padded = np.full((rows + 2, columns + 2, *channels), background, image.dtype)
    padded[1:-1, 1:-1] = image
    down, right = rng.integers(0, 3, size=2)
    return {**example, "image": padded[down : down + rows, right : right + columns]}
