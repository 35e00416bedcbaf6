"""The data is real, split without overlap, and fed in an order that a seed fixes and a checkpoint continues."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_models.architectures.layers import brightness
from nightjar_models.data.digits import BACKGROUND, KEPT_LARGE, load, shift, split
from nightjar_models.data.pipeline import BRIGHTEST, Data, Share, held_out_batches, train_batches
from nightjar_models.data.text import Windows, bigram_loss, read_text, unigram_loss
from nightjar_models.errors import InputError


@pytest.fixture(scope="module")
def text() -> Data:
    return read_text(length=64)


@pytest.fixture(scope="module")
def digits() -> Data:
    return split(load(), 8)


def test_the_text_is_english_and_long_enough_for_one_epoch(text: Data) -> None:
    window = bytes(text.train[len(text.train) // 2]["tokens"].astype(np.uint8).tolist()).decode(errors="replace")
    assert len(text.train) > 300 * 32 * 64
    assert text.trivial["bigram_loss"] < text.trivial["unigram_loss"] < np.log(256)
    assert sum(letter.isascii() for letter in window) > 60


def test_held_out_text_lies_behind_the_training_text(text: Data) -> None:
    first = text.held_out[0]["tokens"]
    last = text.train[len(text.train) - 1]["tokens"]
    assert len(first) == len(last) == 65
    assert text.digest == read_text(length=64).digest


def test_windows_cover_the_text_and_never_leave_it() -> None:
    windows = Windows(np.arange(10, dtype=np.uint8), length=3, stride=3)
    found = [windows[index]["tokens"].tolist() for index in range(len(windows))]
    assert found == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]


def test_trivial_losses_of_a_text_that_repeats_two_letters() -> None:
    text = np.tile(np.array([65, 66], np.uint8), 5000)
    assert unigram_loss(text, text) == pytest.approx(np.log(2), rel=0.05)
    assert bigram_loss(text, text) < 0.1


def test_digits_are_split_into_1413_and_384(digits: Data) -> None:
    assert (len(digits.train), len(digits.held_out)) == (1413, 384)
    one = digits.train[0]
    assert one["image"].shape == (8, 8)
    assert (one["image"].min(), one["image"].max()) == (-1, 0.875)
    assert digits.trivial["majority_accuracy"] < 0.15


@given(st.integers(0, 1412), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_a_shifted_digit_keeps_its_label_and_most_of_its_ink(index: int, seed: int) -> None:
    example = read_cached().train[index]
    moved = shift(example, np.random.default_rng(seed))
    assert moved["label"] == example["label"]
    assert moved["image"].shape == (8, 8)
    kept = (moved["image"] - BACKGROUND).sum() / (example["image"] - BACKGROUND).sum()
    assert 0.4 < kept <= 1 + 1e-6


def test_an_image_is_moved_to_any_neighbour_colours_together() -> None:
    dot = np.full((8, 8, 3), BACKGROUND, np.float32)
    dot[4, 4] = [0.1, 0.2, 0.3]
    rng = np.random.default_rng(0)
    moved = [shift({"image": dot}, rng)["image"] for _ in range(200)]
    places = [tuple(np.argwhere(image[..., 0] > BACKGROUND)[0].tolist()) for image in moved]
    assert set(places) == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}
    assert all((image[place] == dot[4, 4]).all() for image, place in zip(moved, places, strict=True))


@pytest.mark.parametrize(("side", "channels"), [(8, 3), (16, 1), (64, 3), (160, 3)])
def test_larger_images_are_bytes_of_the_same_brightness(digits: Data, side: int, channels: int) -> None:
    index = np.array([5, 1412, 5])
    small, large = digits.train[index]["image"], split(load(), side, channels).train[index]["image"]
    is_kept = 1413 * side * side * channels <= KEPT_LARGE
    assert is_kept == (side < 160)  # larger ones are made batch by batch
    assert large.dtype == np.uint8  # a quarter of what float32 takes on its way to the devices
    expected = small.repeat(side // 8, axis=1).repeat(side // 8, axis=2)
    expected = expected if channels == 1 else expected[..., None].repeat(channels, axis=-1)
    np.testing.assert_array_equal(np.asarray(brightness(jnp.asarray(large))), expected)
    assert small.dtype == np.float32
    assert brightness(jnp.asarray(small)).tolist() == small.tolist()


@pytest.mark.parametrize("shape", [(8, 8), (5, 7, 3)])
def test_bytes_are_shifted_as_numbers_are(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(1).integers(0, BRIGHTEST + 1, shape).astype(np.uint8)
    moved = shift({"image": image}, np.random.default_rng(2))["image"]
    numbers = np.asarray(brightness(jnp.asarray(image)))
    as_numbers = shift({"image": numbers}, np.random.default_rng(2))["image"]
    np.testing.assert_array_equal(as_numbers, np.asarray(brightness(jnp.asarray(moved))))


def read_cached(cache: list[Data] = []) -> Data:  # noqa: B006
    if not cache:
        cache.append(split(load(), 8))
    return cache[0]


LOADERS = ("map", "arrayrecord", "sampler")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "digits"])
def test_another_process_reads_the_batches_that_threads_read(name: str, request: pytest.FixtureRequest) -> None:
    data: Data = request.getfixturevalue(name)
    threads, process = train_batches(data, 157, 3, "map"), train_batches(data, 157, 3, "workers")
    for _ in range(20):  # more than two epochs of the digits, which are changed at random
        expected, found = next(threads), next(process)
        assert all(np.array_equal(expected[part], found[part]) for part in expected)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", ["text", "digits"])
def test_a_seed_fixes_the_order_of_the_batches(name: str, loader: str, request: pytest.FixtureRequest) -> None:
    data: Data = request.getfixturevalue(name)
    key = {"text": "tokens", "digits": "image"}[name]
    streams = [train_batches(data, 8, seed, loader) for seed in (3, 3, 4)]
    first, again, other = (np.stack([next(stream)[key] for _ in range(4)]) for stream in streams)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("loader", LOADERS)
def test_an_epoch_has_every_example_once_and_the_next_another_order(digits: Data, loader: str) -> None:
    stream = train_batches(dataclasses.replace(digits, augment=None), 157, 0, loader)  # nine batches are 1,413
    first, second = (np.concatenate([next(stream)["image"] for _ in range(9)]) for _ in range(2))
    every = digits.train[np.arange(1413)]["image"]
    rows = [np.sort(images.reshape(1413, -1).view("V256"), axis=0) for images in (first, second, every)]
    assert (rows[0] == rows[2]).all()
    assert (rows[1] == rows[2]).all()
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("loader", ["map", "sampler"])
@pytest.mark.parametrize("processes", [2, 4])
def test_the_shares_of_all_processes_are_the_batch_of_one(digits: Data, processes: int, loader: str) -> None:
    data = dataclasses.replace(digits, augment=None)
    shares = [train_batches(data, 8, 0, loader, Share(number, processes)) for number in range(processes)]
    whole = train_batches(data, 8, 0, loader)
    for _ in range(3):
        parts = np.concatenate([next(share)["image"] for share in shares])
        assert np.array_equal(parts, next(whole)["image"])
    state = shares[0].get_state()  # which is what is saved for all of them
    expected = [next(share)["image"] for share in shares]
    for number, batch in enumerate(expected):
        again = train_batches(data, 8, 0, loader, Share(number, processes))
        again.set_state(state)
        assert np.array_equal(next(again)["image"], batch)


def test_data_without_examples_are_refused(digits: Data) -> None:
    empty = dataclasses.replace(digits, train=Windows(np.zeros(64, np.uint8), length=64, stride=1))
    with pytest.raises(InputError, match="the training data is empty"):
        train_batches(empty, 8, 0)


@pytest.mark.parametrize("loader", [*LOADERS, pytest.param("workers", marks=pytest.mark.weekly)])
def test_a_restored_position_continues_with_the_same_batches(loader: str) -> None:
    data = read_cached()
    stream = train_batches(data, 64, 0, loader)
    for number in range(61):  # batches of 64: more than two epochs
        position = json.dumps(stream.get_state())
        expected = next(stream)
        if number in (0, 3, 60):
            other = train_batches(data, 64, 0, loader)
            other.set_state(json.loads(position))
            found = next(other)
            assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_held_out_batches_are_whole_and_in_order(digits: Data) -> None:
    batches = held_out_batches(digits, 100)
    assert [len(batch["label"]) for batch in batches] == [100, 100, 100]
    with pytest.raises(InputError, match=r"batch_size: expected at most 384 .*found 400"):
        held_out_batches(digits, 400)
    assert batches[0]["label"][0] == digits.held_out[0]["label"]
