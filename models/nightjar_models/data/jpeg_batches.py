"""JPEG batches by Grain: threads read, decode and resize files ahead of the model.

In: a folder of `CLASS/*.jpg`. Out: what `dali.py` yields, by Pillow: `image` uint8 [batch, side, side, 3] and `label`
int32 [batch]. Pillow gives up the interpreter's lock while it decodes and resizes, so that threads are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from nightjar_models.data.jpegs import lay_out, list_jpegs

READ_AHEAD = 64  # examples; more changed nothing


def grain_batches(
    folder: Path,
    *,
    batch_size: int,
    side: int,
    seed: int = 0,
    shuffle: bool = True,
    sharding: Sharding | None = None,
    threads: int = 2,
) -> Iterator[dict[str, jax.Array]]:
    """One epoch of batches; the last is left out where it is not whole. Every process reads its own share.

    Args:
        folder: with one folder per class.
        batch_size: examples of a batch in this process.
        side: of the resized square, by a triangular filter with antialiasing (Pillow's `BILINEAR`).
        seed: of the order.
        shuffle: whether the order is random.
        sharding: where batches lie; JAX's default device where None.
        threads: that decode.
    """
    paths, labels = list_jpegs(folder)
    pairs = list(zip(paths, labels, strict=True))

    def decode(pair: tuple[Path, int]) -> dict[str, NDArray[Any]]:
        return {"image": decode_jpeg(pair[0], side), "label": np.int32(pair[1])}  # type: ignore[dict-item]

    dataset = grain.MapDataset.source(pairs).seed(seed)
    if shuffle:
        dataset = dataset.shuffle()
    dataset = dataset[jax.process_index() :: jax.process_count()].map(decode)
    ahead = dataset.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=READ_AHEAD))
    for batch in ahead.batch(batch_size, drop_remainder=True):
        yield {name: lay_out(array, sharding) for name, array in batch.items()}


def decode_jpeg(path: Path, side: int) -> NDArray[np.uint8]:
    """The picture as uint8 [side, side, 3]."""
    from PIL import Image

    with Image.open(path) as picture:
        colours = picture if picture.mode == "RGB" else picture.convert("RGB")  # which copies
        return np.asarray(colours.resize((side, side), Image.Resampling.BILINEAR))
