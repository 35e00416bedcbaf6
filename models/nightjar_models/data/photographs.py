"""The user's photographs: a folder of `CLASS/*.jpg`, decoded on demand by Pillow or by DALI.

In: the folder, the side of the squares and who decodes. Out: images int8 [side, side, 3], whose darkest is -128, and
the number of each class in the order of their names. Every tenth file of the sorted list is held out, fewer of a large
folder; half of the training images are flipped, left to right, at random.

A batch is decoded at once while the devices compute the one before. `pipeline.py` sets its order and the position to
resume from, whoever decodes. Every process decodes whole batches.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_models.data.jpegs import list_jpegs
from nightjar_models.data.pipeline import DARKEST, Data, Example, Examples, Index, digest
from nightjar_models.errors import InputError, ToolError

HELD_OUT_EVERY = 10
MOST_HELD_OUT = 4096  # they stay in memory until all are judged: 0.6 GB of 224 x 224 pixels

Decode = Callable[[Sequence[Path]], NDArray[np.uint8]]


class Photographs(Examples):
    """JPEGs with the number of their class.

    Args:
        decode: makes uint8 [n, side, side, 3] of n files.
    """

    def __init__(self, paths: Sequence[Path], labels: Sequence[int], decode: Decode) -> None:
        self._paths, self._labels, self._decode = paths, np.array(labels, np.int32), decode

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Index) -> Example:
        """One photograph or several: `image` int8 [..., side, side, 3], and `label` int32."""
        images = self._decode([self._paths[one] for one in np.atleast_1d(index)])
        signed = (images ^ DARKEST).view(np.int8)
        return {"image": signed.reshape(*np.shape(index), *images.shape[1:]), "label": self._labels[index]}


def read_photographs(folder: Path, side: int, classes: int, decoder: str) -> Data:
    """The photographs of a folder, split by position.

    Args:
        classes: of the model, at least as many as the folder has.
        decoder: `pillow` or `dali`.
    """
    if not folder.is_dir():
        raise InputError(f"data.images: expected a folder, found nothing at {folder}.", "folders of CLASS/*.jpg")
    paths, labels = list_jpegs(folder)
    if not paths:
        raise InputError(f"data.images: {folder} has no CLASS/*.jpg.", "one folder per class, JPEGs in it")
    if (found := max(labels) + 1) > classes:
        raise InputError(f"model.classes: expected at least {found} (folders of {folder}), found {classes}.")
    every = max(HELD_OUT_EVERY, -(-len(paths) // MOST_HELD_OUT))
    decode = {"pillow": decode_by_pillow, "dali": decode_by_dali}[decoder](side)
    counts = np.bincount([label for number, label in enumerate(labels) if number % every], minlength=classes)
    held_out = labels[::every]
    trained = [number for number in range(len(paths)) if number % every]
    listed = "\n".join(f"{path.relative_to(folder)} {path.stat().st_size}" for path in paths)
    return Data(
        train=Photographs([paths[number] for number in trained], [labels[number] for number in trained], decode),
        held_out=Photographs(paths[::every], held_out, decode),
        augment=turn_around,
        digest=digest(np.frombuffer(listed.encode(), np.uint8)),  # of names and sizes
        trivial={"majority_accuracy": float(np.mean(np.array(held_out) == counts.argmax()))},
    )


def turn_around(example: Example, rng: np.random.Generator) -> Example:
    """Turns an image left to right, or not, at random."""
    if rng.random() < 0.5:
        return example
    return {**example, "image": example["image"][:, ::-1]}


def decode_by_pillow(side: int) -> Decode:
    """Threads that decode and resize; Pillow releases the interpreter's lock."""
    from PIL.Image import DecompressionBombError

    pool = concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="jpeg")

    def decode_one(path: Path) -> NDArray[np.uint8]:
        try:
            return decode_jpeg(path, side)
        except (OSError, SyntaxError, DecompressionBombError) as error:  # SyntaxError: of a damaged header
            raise InputError(f"data.images: {path} cannot be decoded: {error}.", "remove or replace it") from None

    return lambda paths: np.stack(list(pool.map(decode_one, paths)))


def decode_by_dali(side: int) -> Decode:
    """DALI, on the GPU if this process has one."""
    try:
        from nvidia.dali import Pipeline, fn, types
    except ImportError:
        hint = "pip install nvidia-dali-cuda120, or the image nightjar/dali; or --set data.decoder=pillow"
        raise ToolError("data.decoder=dali: DALI is not installed.", hint) from None
    import jax

    gpu = next((one.local_hardware_id for one in jax.local_devices() if one.platform == "gpu"), None)

    @functools.lru_cache(maxsize=2)  # training batches, and held-out ones
    def make(size: int) -> Any:
        pipeline = Pipeline(size, num_threads=os.cpu_count() or 1, device_id=gpu, prefetch_queue_depth=1)
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=False)
        image = fn.decoders.image(encoded, device="cpu" if gpu is None else "mixed", output_type=types.RGB)
        square = fn.resize(image, resize_x=side, resize_y=side, interp_type=types.INTERP_LINEAR, antialias=True)
        pipeline.set_outputs(square)
        pipeline.build()
        return pipeline

    def decode(paths: Sequence[Path]) -> NDArray[np.uint8]:
        pipeline = make(len(paths))
        try:
            pipeline.feed_input("encoded", [np.fromfile(path, np.uint8) for path in paths])
            (images,) = pipeline.run()
        except (OSError, RuntimeError) as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            names = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else str(paths[0])
            hint = "--set data.decoder=pillow says which file it is"
            raise InputError(f"data.images: DALI cannot decode one of {names}: {reason}", hint) from None
        return np.array(images.as_cpu().as_array())

    return decode


def decode_jpeg(path: Path, side: int) -> NDArray[np.uint8]:
    """The picture as uint8 [side, side, 3]."""
    from PIL import Image

    with Image.open(path) as picture:
        colours = picture if picture.mode == "RGB" else picture.convert("RGB")  # which copies
        return np.asarray(colours.resize((side, side), Image.Resampling.BILINEAR))
