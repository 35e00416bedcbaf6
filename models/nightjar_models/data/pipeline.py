"""Batches of training data by Grain: shuffled by seed, endless, and resumable from a checkpoint.

In: examples by index, a seed and a batch size. Out: a Grain iterator over batches, whose `get_state` and `set_state`
hold the position. A process reads the examples of each batch that its devices hold; which examples a batch has, and how
each is changed at random, does not depend on the number of processes.

Grain takes about 20 us of CPU for an example, and 50 us for one that is changed at random (grain 0.2.18); it reads
ahead in threads, and a step's wait is measured (`input_wait`).
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags
from numpy.typing import NDArray

from nightjar_models.errors import InputError

Example = Mapping[str, NDArray[Any]]
Index = int | NDArray[np.int64]

BRIGHTEST = 16  # of images in bytes; 0 is the background
DARKEST = np.uint8(128)  # of images in bytes with a sign: offset from unsigned bytes
READERS, READ_AHEAD = 2, 4  # threads, and how many batches they read before these are asked for
RECORDS = 20_000  # at most, of a file that is written for `data.loader=arrayrecord`


class Examples(abc.ABC):
    """Examples by index."""

    def __repr__(self) -> str:
        """The same in each process: Grain compares it with a checkpoint's."""
        return f"{type(self).__name__}({len(self)})"

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def __getitem__(self, index: Index) -> Example:
        """One example, names to arrays; or a batch for an array of indices, along a first dimension."""


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """A model's training and held-out data.

    Attributes:
        train: examples, drawn in shuffled epochs.
        held_out: examples that are never trained on, read once in order.
        augment: changes an example at random; None leaves them as they are.
        digest: of all bytes of both; equal digests mean equal data.
        trivial: score of the best trivial answer on `held_out`, by metric.
    """

    train: Examples
    held_out: Examples
    augment: Callable[[Example, np.random.Generator], Example] | None
    digest: str
    trivial: dict[str, float]


def digest(*arrays: NDArray[Any]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the arrays' bytes."""
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()[:16]


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Which part of each batch a process reads: of `of` equal blocks the one with this `number`, from zero."""

    number: int = 0
    of: int = 1


class Augment(grain.transforms.RandomMap):  # type: ignore[misc]  # grain has no types
    """Changes each example at random.

    Args:
        change: the data's `augment`.
    """

    def __init__(self, change: Callable[[Example, np.random.Generator], Example]) -> None:
        self._change = change

    def random_map(self, element: Example, rng: np.random.Generator) -> Example:
        """The changed example; Grain makes the generator from the seed and the example's place in the stream."""
        return self._change(element, rng)


class Record(grain.transforms.Map):  # type: ignore[misc]
    """Reads an example from the bytes of a record: its arrays one after the other.

    Args:
        example: any, for names, shapes and types.
    """

    def __init__(self, example: Example) -> None:
        self._layout = {name: (np.shape(value), np.asarray(value).dtype) for name, value in example.items()}

    def write(self, example: Example) -> bytes:
        return b"".join(np.asarray(example[name]).tobytes() for name in self._layout)

    def map(self, element: bytes) -> Example:
        """The example of these bytes."""
        example, offset = {}, 0
        for name, (shape, dtype) in self._layout.items():
            count = int(np.prod(shape))
            example[name] = np.frombuffer(element, dtype, count, offset).reshape(shape)
            offset += count * dtype.itemsize
        return example


def train_batches(data: Data, batch_size: int, seed: int, loader: str = "map", share: Share = Share()) -> Any:
    """Endless batches; each epoch in its own shuffled order.

    Args:
        seed: of the order and the random changes.
        loader: `map`, a `MapDataset` read in threads; `workers`, the same read by another process; `arrayrecord`, the
            same from a file of records; `sampler`, a `DataLoader` with an `IndexSampler`.
        share: this process's part of each batch.

    Returns:
        a Grain iterator, whose state is JSON.
    """
    if not len(data.train):
        raise InputError(
            "the training data is empty: expected at least one example.", "shorten model.length with --set"
        )
    if loader == "sampler":
        return _load_by_sampler(data, batch_size, seed, share)
    examples = grain.MapDataset.source(_write_records(data.train) if loader == "arrayrecord" else data.train)
    if loader == "arrayrecord":
        examples = examples.map(Record(data.train[0]))
    examples = examples.seed(seed).shuffle().repeat()
    if data.augment is not None:
        examples = examples.random_map(Augment(data.augment))
    batches = examples.batch(batch_size // share.of, drop_remainder=True)[share.number :: share.of]
    if loader == "workers":
        if not flags.FLAGS.is_parsed():  # Grain asks for flags of its own, which a command line of Typer never parses
            flags.FLAGS(["nightjar-models"])
        options = grain.MultiprocessingOptions(num_workers=1)
        return iter(batches.to_iter_dataset().mp_prefetch(options))
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=READERS, prefetch_buffer_size=READ_AHEAD)))


class _LoaderIterator:
    """A share of the batches of a `DataLoader`, with a state that is JSON, like a dataset's, and the same for all."""

    def __init__(self, loader: Any, share: Share) -> None:
        self._iterator, self._share = iter(loader), share

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Example:
        batch: Example = next(self._iterator)
        return {name: np.split(rows, self._share.of)[self._share.number] for name, rows in batch.items()}

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._iterator.get_state())
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.set_state(json.dumps(state).encode())


def _load_by_sampler(data: Data, batch_size: int, seed: int, share: Share) -> _LoaderIterator:
    """Batches of a `DataLoader`, in this process."""
    whole = grain.sharding.NoSharding()
    sampler = grain.samplers.IndexSampler(
        len(data.train), shuffle=True, seed=seed, num_epochs=None, shard_options=whole
    )
    changes = [] if data.augment is None else [Augment(data.augment)]
    operations = [*changes, grain.transforms.Batch(batch_size, drop_remainder=True)]
    loader = grain.DataLoader(data_source=data.train, sampler=sampler, operations=operations, worker_count=0)
    return _LoaderIterator(loader, share)


def _write_records(examples: Examples) -> Any:
    """Examples, evenly spread over all, in an ArrayRecord file that vanishes with this process."""
    from array_record.python.array_record_module import ArrayRecordWriter

    folder = tempfile.mkdtemp(prefix="nightjar-records-")
    path = str(Path(folder) / "train.array_record")
    writer, record = ArrayRecordWriter(path, "group_size:1"), Record(examples[0])
    for index in np.linspace(0, len(examples) - 1, min(len(examples), RECORDS)).astype(np.int64):
        writer.write(record.write(examples[int(index)]))
    writer.close()
    source = grain.sources.ArrayRecordDataSource(path)
    weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)  # when nobody reads it any more
    return source


def held_out_batches(data: Data, batch_size: int) -> list[Example]:
    """All whole batches of the held-out examples, in order."""
    if batch_size > len(data.held_out):
        raise InputError(f"batch_size: expected at most {len(data.held_out)} (held-out examples), found {batch_size}.")
    batches = grain.MapDataset.source(data.held_out).batch(batch_size, drop_remainder=True)
    return [batches[number] for number in range(len(batches))]
