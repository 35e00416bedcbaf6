"""JPEG batches by DALI: its threads read, decode and resize files, and JAX lays batches over a mesh.

In: a folder of `CLASS/*.jpg`. Out: an iterator over `image` uint8 [batch, side, side, 3] and `label` int32 [batch].
With `device_id=None` all of it runs on the CPU; with a GPU's number the JPEGs are decoded there. Every process reads
its own share of the files. DALI's own `sharding=` needs CUDA devices, so the arrays are laid out by JAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding

from nightjar_models.data.jpegs import lay_out


def dali_batches(
    folder: Path,
    *,
    batch_size: int,
    side: int,
    seed: int = 0,
    shuffle: bool = True,
    sharding: Sharding | None = None,
    threads: int = 2,
    device_id: int | None = None,
) -> Iterator[dict[str, jax.Array]]:
    """One epoch of batches; the last is left out if it is not whole.

    Args:
        folder: with one folder per class.
        batch_size: examples of a batch in this process.
        side: of the resized square, by a triangular filter with antialiasing (Pillow's `BILINEAR`).
        seed: of the order.
        shuffle: whether the order is random.
        sharding: of the batches; JAX's default device if None.
        device_id: the GPU that decodes; None is the CPU.
    """
    from nvidia.dali import fn, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.jax import data_iterator

    decoder = "mixed"
    if device_id is None:
        decoder = "cpu"

    @data_iterator(output_map=["image", "label"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP)  # type: ignore[untyped-decorator]
    def pipeline() -> tuple[Any, Any]:
        encoded, label = fn.readers.file(
            file_root=str(folder),
            random_shuffle=shuffle,
            shard_id=jax.process_index(),
            num_shards=jax.process_count(),
            seed=seed,
            name="reader",
        )
        image = fn.decoders.image(encoded, device=decoder, output_type=types.RGB)
        image = fn.resize(image, resize_x=side, resize_y=side, interp_type=types.INTERP_LINEAR, antialias=True)
        return image, label.gpu() if device_id is not None else label

    for batch in pipeline(batch_size=batch_size, num_threads=threads, device_id=device_id, seed=seed):
        yield {"image": lay_out(batch["image"], sharding), "label": lay_out(batch["label"].reshape(-1), sharding)}
