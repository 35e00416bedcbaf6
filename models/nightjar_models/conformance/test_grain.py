"""Grain's datasets and loader: order, completeness, shards and saved positions, against plain Python lists.

Source: the tutorials "Dataset basics", "DataLoader" and "Checkpointing" of google-grain.readthedocs.io.
"""

from __future__ import annotations

import collections
import pickle
from typing import Any

import grain
import numpy as np
import pytest

from nightjar_models.conformance.agreement import assert_same


class Squares:
    """A source as users write it: two methods."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.int64(index**2), "pair": np.array([index, -index])}


class AddOne(grain.transforms.Map):
    """x to x + 1."""

    def map(self, element: int) -> int:
        return element + 1


class KeepEven(grain.transforms.Filter):
    """Even numbers only."""

    def filter(self, element: int) -> bool:
        return element % 2 == 0


class AddNoise(grain.transforms.RandomMap):
    """x to x + a number of [0, 1)."""

    def random_map(self, element: int, rng: np.random.Generator) -> float:
        return element + rng.random()


def test_map_dataset_source() -> None:
    dataset = grain.MapDataset.source(Squares())
    assert len(dataset) == 10
    assert [int(dataset[index]["x"]) for index in range(10)] == [index**2 for index in range(10)]
    assert int(dataset[13]["x"]) == 9  # an index past the end begins again
    numbers = grain.MapDataset.range(2, 11, 3)
    assert list(numbers) == [2, 5, 8]
    assert list(grain.MapDataset.source([3, 1, 2])) == [3, 1, 2]


class Letters(grain.sources.RandomAccessDataSource):
    """A source that derives from the class made for it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        return "abc"[index]


def test_random_access_data_source() -> None:
    assert isinstance(Squares(), grain.sources.RandomAccessDataSource)  # by its two methods
    assert isinstance(Letters(), grain.sources.RandomAccessDataSource)
    sampler = grain.samplers.IndexSampler(3, num_epochs=2)
    assert list(grain.DataLoader(data_source=Letters(), sampler=sampler)) == [*"abcabc"]
    assert list(grain.MapDataset.source(Letters())) == [*"abc"]


def test_map_dataset_map() -> None:
    dataset = grain.MapDataset.range(4)
    assert list(dataset.map(lambda x: x * 10)) == [0, 10, 20, 30]
    assert list(dataset.map(AddOne())) == [1, 2, 3, 4]
    assert list(dataset.map_with_index(lambda index, x: (index, x * x))) == [(0, 0), (1, 1), (2, 4), (3, 9)]


def test_map_dataset_filter() -> None:
    dataset = grain.MapDataset.range(6).filter(lambda x: x % 3 == 0)
    assert [dataset[index] for index in range(6)] == [0, None, None, 3, None, None]
    assert list(dataset.to_iter_dataset()) == [0, 3]
    assert list(grain.MapDataset.range(6).filter(KeepEven()).to_iter_dataset()) == [0, 2, 4]


def test_map_dataset_slice() -> None:
    dataset = grain.MapDataset.range(10)
    assert list(dataset[2:7:2]) == [2, 4, 6]
    shards = [list(dataset.slice(slice(shard, None, 3))) for shard in range(3)]
    assert shards == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_map_dataset_batch() -> None:
    dataset = grain.MapDataset.source(Squares()).batch(4)
    assert len(dataset) == 3
    assert_same(dataset[1]["x"], np.array([16, 25, 36, 49]))
    assert_same(dataset[2]["pair"], np.array([[8, -8], [9, -9]]))
    assert len(grain.MapDataset.range(10).batch(4, drop_remainder=True)) == 2
    joined = grain.MapDataset.range(4).batch(2, batch_fn=sum)
    assert list(joined) == [1, 5]


def test_map_dataset_repeat() -> None:
    dataset = grain.MapDataset.range(3)
    assert list(dataset.repeat(2)) == [0, 1, 2, 0, 1, 2]
    endless = dataset.repeat()
    assert endless[3 * 10**6 + 1] == 1
    assert len(endless) > 10**12


def test_map_dataset_shuffle() -> None:
    dataset = grain.MapDataset.range(1000).shuffle(seed=42)
    order = list(dataset)
    assert sorted(order) == list(range(1000))
    # The rank correlation of a random order has a standard deviation of 1 / sqrt(n): five of them.
    assert abs(np.corrcoef(order, range(1000))[0, 1]) < 5 / np.sqrt(1000)
    assert list(grain.MapDataset.range(1000).shuffle(seed=42)) == order
    assert list(grain.MapDataset.range(1000).shuffle(seed=43)) != order
    assert list(grain.MapDataset.range(1000).seed(7).shuffle()) == list(grain.MapDataset.range(1000).seed(7).shuffle())


def test_each_epoch_has_another_order() -> None:
    dataset = grain.MapDataset.range(50).shuffle(seed=1).repeat(3)
    order = list(dataset)
    epochs = [order[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert epochs[1] != epochs[2]
    same = list(grain.MapDataset.range(50).shuffle(seed=1).repeat(2, reseed_each_epoch=False))
    assert same[:50] == same[50:] == epochs[0]


def test_random_map() -> None:
    dataset = grain.MapDataset.source([0] * 500).seed(3).random_map(AddNoise())
    noise = list(dataset)
    assert len(set(noise)) == 500  # each element has a generator of its own
    assert np.mean(noise) == pytest.approx(0.5, abs=5 / np.sqrt(12 * 500))
    assert noise == list(grain.MapDataset.source([0] * 500).seed(3).random_map(AddNoise()))
    plain = grain.MapDataset.source([0] * 5).random_map(lambda x, rng: int(rng.integers(9)), seed=1)
    assert list(plain) == list(plain)


def test_mix() -> None:
    first, second = grain.MapDataset.source(["a"]).repeat(), grain.MapDataset.source(["b"]).repeat()
    mixed = grain.MapDataset.mix([first, second], weights=[0.75, 0.25])
    counts = collections.Counter(mixed[index] for index in range(400))
    assert counts == {"a": 300, "b": 100}


def test_iter_dataset() -> None:
    dataset = grain.MapDataset.range(10).shuffle(seed=2).to_iter_dataset()
    assert isinstance(dataset, grain.IterDataset)
    assert sorted(dataset) == list(range(10))
    chain = dataset.map(lambda x: 2 * x).filter(lambda x: x >= 10).batch(2, drop_remainder=True)
    batches = list(chain)
    assert sorted(int(x) for batch in batches for x in batch)[0] >= 10
    assert [len(batch) for batch in batches] == [2, 2]
    assert list(dataset) == list(dataset)  # each iteration begins at the start


def test_iterator_continues_where_it_was_saved() -> None:
    dataset = grain.MapDataset.range(20).shuffle(seed=5).repeat(2).batch(3).to_iter_dataset()
    iterator = iter(dataset)
    head = [next(iterator) for _ in range(4)]
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    rest = list(iterator)
    again = iter(dataset)
    next(again)
    again.set_state(state)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in rest]
    assert sorted(np.concatenate(head + rest).tolist()) == sorted([*range(20)] * 2)


def test_prefetch_keeps_the_order() -> None:
    dataset = grain.MapDataset.range(40).map(lambda x: x + 1)
    options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=8)
    assert list(dataset.to_iter_dataset(options)) == list(range(1, 41))
    assert list(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0))) == list(range(1, 41))


def test_index_sampler() -> None:
    sampler = grain.samplers.IndexSampler(6, shuffle=False, num_epochs=2)
    keys = [sampler[index].record_key for index in range(12)]
    assert keys == [*range(6)] * 2
    assert [sampler[index].index for index in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError):
        sampler[12]
    shuffled = grain.samplers.IndexSampler(100, shuffle=True, num_epochs=2, seed=3)
    epochs = [[shuffled[start + index].record_key for index in range(100)] for start in (0, 100)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != list(range(100))
    again = grain.samplers.IndexSampler(100, shuffle=True, num_epochs=2, seed=3)
    assert [again[index].record_key for index in range(100)] == epochs[0]
    draws = {float(shuffled[index].rng.random()) for index in range(50)}
    assert len(draws) == 50


def load(**arguments: Any) -> grain.DataLoader:
    settings: dict[str, Any] = {"worker_count": 0, **arguments}
    sampler = settings.pop("sampler", None) or grain.samplers.IndexSampler(10, num_epochs=1, seed=0)
    return grain.DataLoader(data_source=Squares(), sampler=sampler, **settings)


class TakeX(grain.transforms.Map):
    """The number of a record."""

    def map(self, element: dict[str, Any]) -> int:
        return int(element["x"])


def test_data_loader() -> None:
    assert [int(record["x"]) for record in load()] == [index**2 for index in range(10)]
    loader = load(operations=[TakeX(), AddOne(), KeepEven(), grain.transforms.Batch(2)])
    expected = [index**2 + 1 for index in range(10) if index % 2]
    batches = [batch.tolist() for batch in loader]
    assert batches == [expected[:2], expected[2:4], expected[4:]]
    whole = load(operations=[TakeX(), grain.transforms.Batch(batch_size=4, drop_remainder=True)])
    assert [len(batch) for batch in whole] == [4, 4]


def load_shards(count: int, **arguments: Any) -> list[list[int]]:
    shards = []
    for index in range(count):
        options = grain.sharding.ShardOptions(index, count, drop_remainder=True)
        sampler = grain.samplers.IndexSampler(10, shard_options=options, **{"num_epochs": 1, **arguments})
        shards.append([int(x) for x in load(sampler=sampler, operations=[TakeX()])])
    return shards


def test_data_loader_shards() -> None:
    shards = load_shards(5, shuffle=True, seed=1)
    assert [len(shard) for shard in shards] == [2] * 5
    assert sorted(x for shard in shards for x in shard) == [index**2 for index in range(10)]
    assert load_shards(2) == [[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]
    twice = load_shards(3, num_epochs=2, shuffle=True, seed=1)
    for first in (0, 3):  # an epoch has each record once, whoever reads it
        assert len({x for shard in twice for x in shard[first : first + 3]}) == 9
    dropped = load_shards(3)  # without `drop_remainder` Grain 0.2.18 loses a record of the longer shards as well
    assert dropped == [[0, 1, 4], [9, 16, 25], [36, 49, 64]]
    whole = grain.sharding.NoSharding()
    assert (whole.shard_index, whole.shard_count) == (0, 1)


@pytest.mark.parametrize(("shard", "shards", "batches"), [(0, 1, 6), (1, 2, 3), (2, 3, 2)])
def test_data_loader_continues_where_it_was_saved(shard: int, shards: int, batches: int) -> None:
    options = grain.sharding.ShardOptions(shard, shards, drop_remainder=True)
    sampler = grain.samplers.IndexSampler(10, options, shuffle=True, num_epochs=2, seed=4)
    loader = load(sampler=sampler, operations=[TakeX(), grain.transforms.Batch(3, drop_remainder=True)])
    iterator = iter(loader)
    head = [next(iterator).tolist()]
    state = iterator.get_state()
    rest = [batch.tolist() for batch in iterator]
    again = iter(loader)
    again.set_state(state)
    assert [batch.tolist() for batch in again] == rest
    assert len(head + rest) == batches


def test_data_loader_gives_the_same_records_again() -> None:
    sampler = grain.samplers.IndexSampler(10, shuffle=True, num_epochs=1, seed=4)
    plain = [int(x) for x in load(sampler=sampler, operations=[TakeX()])]
    assert sorted(plain) == [index**2 for index in range(10)]
    random = [float(x) for x in load(sampler=sampler, operations=[TakeX(), AddNoise()])]
    assert random == [float(x) for x in load(sampler=sampler, operations=[TakeX(), AddNoise()])]
    assert [int(x) for x in random] == plain
    assert len({x - int(x) for x in random}) == 10


def test_older_names() -> None:
    pytest.importorskip("grain.python")
    python: Any = grain.python
    assert python.DataLoader is grain.DataLoader
    assert python.MapDataset is grain.MapDataset
    assert python.IndexSampler is grain.samplers.IndexSampler
    assert isinstance(Letters(), python.RandomAccessDataSource)

    class Halve(python.MapTransform):
        def map(self, element: int) -> float:
            return element / 2

    sampler = python.IndexSampler(4, shard_options=python.NoSharding(), shuffle=False, num_epochs=1, seed=0)
    loader = python.DataLoader(data_source=Squares(), sampler=sampler, operations=[TakeX(), Halve(), python.Batch(4)])
    assert [batch.tolist() for batch in loader] == [[0, 0.5, 2, 4.5]]


def test_packing() -> None:
    sequences = [{"tokens": np.full(length, length)} for length in (3, 2, 4, 1)]
    source = grain.MapDataset.source(sequences).to_iter_dataset()
    packed = grain.experimental.FirstFitPackIterDataset(source, length_struct={"tokens": 5}, num_packing_bins=2)
    rows = [
        (row["tokens"].tolist(), row["tokens_segment_ids"].tolist(), row["tokens_positions"].tolist()) for row in packed
    ]
    assert sorted(rows) == [
        ([3, 3, 3, 2, 2], [1, 1, 1, 2, 2], [0, 1, 2, 0, 1]),
        ([4, 4, 4, 4, 1], [1, 1, 1, 1, 2], [0, 1, 2, 3, 0]),
    ]


def test_window_shuffle() -> None:
    shuffled = grain.experimental.WindowShuffleMapDataset(grain.MapDataset.range(12), window_size=4, seed=0)
    order = list(shuffled)
    assert [sorted(order[start : start + 4]) for start in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert order != list(range(12))


def test_index_shuffle_is_a_permutation() -> None:
    order = [grain.experimental.index_shuffle(index, max_index=99, seed=5, rounds=4) for index in range(100)]
    assert sorted(order) == list(range(100))
