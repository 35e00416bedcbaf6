"""In which order is the data fed? Deterministic by seed, endless, and able to continue where a checkpoint stopped.

In: examples by index, a seed and a batch size. Out: a Grain iterator over batches, whose `get_state` and `set_state`
hold the position.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grain
import numpy as np
from numpy.typing import NDArray

from nightjar_models.errors import InputError

Example = Mapping[str, NDArray[Any]]
Index = int | NDArray[np.int64]


class Examples(Protocol):
    """Examples by index."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: Index) -> Example:
        """One example, names to arrays; or those of an array of indices, along a first dimension of the batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """What a model is trained on and judged by.

    Attributes:
        train: examples, drawn in shuffled epochs.
        held_out: examples that are never trained on, read once in order.
        augment: changes a training example at random; None leaves it as it is.
        digest: of all bytes of both; equal digests mean equal data.
        trivial: what the best of the trivial answers scores on `held_out`, by metric.
    """

    train: Examples
    held_out: Examples
    augment: Callable[[Example, np.random.Generator], Example] | None
    digest: str
    trivial: dict[str, float]


def digest(*arrays: NDArray[Any]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the arrays' bytes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def train_batches(data: Data, batch_size: int, seed: int) -> grain.DatasetIterator[dict[str, NDArray[Any]]]:
    """Endless batches; each epoch in its own shuffled order. The examples lie in memory, so no thread reads ahead.

    Raises:
        InputError: there are no examples.
    """
    if not len(data.train):
        raise InputError(
            "the training data is empty: expected at least one example.", "shorten model.length with --set"
        )
    dataset = grain.MapDataset.source(data.train).seed(seed).shuffle().repeat()
    if data.augment is not None:
        dataset = dataset.random_map(data.augment)
    batches = dataset.batch(batch_size, drop_remainder=True)
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))


def reorder(batch: Mapping[str, NDArray[Any]], seed: int, step: int) -> dict[str, NDArray[Any]]:
    """The batch with its examples in another order, which changes the order of sums and nothing else."""
    size = len(next(iter(batch.values())))
    order = np.random.default_rng([seed, step]).permutation(size)
    return {name: value[order] for name, value in batch.items()}


def held_out_batches(data: Data, batch_size: int) -> list[dict[str, NDArray[Any]]]:
    """All whole batches of the held-out examples, in order.

    Raises:
        InputError: there are fewer examples than one batch.
    """
    if batch_size > len(data.held_out):
        raise InputError(f"batch_size: expected at most {len(data.held_out)} (held-out examples), found {batch_size}.")
    return list(grain.MapDataset.source(data.held_out).batch(batch_size, drop_remainder=True))
