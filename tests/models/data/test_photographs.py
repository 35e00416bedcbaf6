"""A vision transformer is trained on a folder of JPEGs; whoever decodes them, order and position are the same."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from nightjar_models.data.jpegs import list_jpegs, write_jpegs
from nightjar_models.data.photographs import Photographs, decode_jpeg, read_photographs, turn_around
from nightjar_models.data.pipeline import train_batches
from nightjar_models.errors import InputError, ToolError
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import describe_config, override
from tests.models.conftest import Command

SIDE, FILES = 16, 60
SMALL = ["model.image=16", "model.patch=8", "model.channels=3", "batch_size=6", "model.layers=1"]
HAS_DALI = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None
DECODERS = ["pillow", pytest.param("dali", marks=pytest.mark.skipif(not HAS_DALI, reason="DALI is not installed"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("photographs")
    write_jpegs(made, FILES)
    return made


def options(folder: Path, *settings: str) -> list[str]:
    return [part for setting in [*SMALL, f"data.images={folder}", *settings] for part in ("--set", setting)]


def test_every_tenth_is_held_out_and_the_trivial_answer_is_the_commonest_class(folder: Path) -> None:
    data = read_photographs(folder, SIDE, 2, "pillow")
    assert (len(data.train), len(data.held_out)) == (54, 6)
    batch = data.held_out[np.arange(6)]
    assert batch["image"].shape == (6, SIDE, SIDE, 3)
    assert batch["image"].dtype == np.int8
    path = sorted(folder.glob("*/*.jpg"))[0]
    assert (decode_jpeg(path, SIDE) == batch["image"][0].astype(np.int32) + 128).all()
    assert batch["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert data.trivial == {"majority_accuracy": 0.5}
    (folder / "other").mkdir()
    assert read_photographs(folder, SIDE, 3, "pillow").digest == data.digest
    (folder / "other").rmdir()


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_batch_has_the_pixels_of_its_files_and_comes_again_at_its_position(folder: Path, decoder: str) -> None:
    data = read_photographs(folder, SIDE, 2, decoder)
    batches = train_batches(data, 6, seed=3)
    first = next(batches)
    position = batches.get_state()
    second = next(batches)
    batches.set_state(position)
    again = next(batches)
    assert (again["image"] == second["image"]).all()
    assert not (first["image"] == second["image"]).all()
    reference = read_photographs(folder, SIDE, 2, "pillow").held_out[2]
    difference = data.held_out[2]["image"].astype(np.int32) - reference["image"].astype(np.int32)
    assert np.abs(difference).mean() < 1  # of 255; edges of a picture come out some levels apart


def test_half_of_the_images_are_turned_around_and_none_is_changed() -> None:
    images = np.arange(40 * 2 * 3 * 3, dtype=np.int64).reshape(40, 2, 3, 3)
    rng = np.random.default_rng(0)
    turned = np.stack([turn_around({"image": image}, rng)["image"] for image in images])
    same = (turned == images).all(axis=(1, 2, 3))
    assert 10 < same.sum() < 30
    assert (turned[~same] == images[~same, :, ::-1]).all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.slow
def test_a_vision_transformer_learns_them(called: Command, folder: Path, tmp_path: Path, decoder: str) -> None:
    settings = options(
        folder, "steps=40", "schedule_steps=40", "warmup_steps=5", "model.classes=2", f"data.decoder={decoder}"
    )
    done = called("train", "vit_tiny", *settings, "--out", "out")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    curves = {curve["name"]: curve["values"] for curve in result["curves"]}
    assert curves["eval_accuracy"][-1] > result["config"]["trivial.majority_accuracy"] == 0.5
    assert result["config"]["data.images"] == str(folder)


def test_results_on_digits_do_not_say_where_images_come_from() -> None:
    assert not [key for key in describe_config(find_preset("vit_tiny")()) if key.startswith("data.")]


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "a" / "1.jpg"
    damaged.parent.mkdir()
    damaged.write_bytes(next(folder.glob("*/*.jpg")).read_bytes()[:200])
    data = read_photographs(tmp_path, SIDE, 2, "pillow")
    with pytest.raises(InputError, match=r"a/1\.jpg cannot be decoded"):
        data.held_out[0]


def test_a_picture_of_far_too_many_pixels_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match=r"\.jpg cannot be decoded: .*decompression bomb"):
        read_photographs(folder, SIDE, 2, "pillow").held_out[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.images=nowhere"], "data.images: expected a folder, found nothing at nowhere"),
        (["data.images=."], r"has no CLASS/\*.jpg"),
        (["model.classes=1"], r"model.classes: expected at least 2 \(folders of .*\), found 1"),
        (["model.channels=1"], "model.channels: expected 3 for photographs, found 1"),
        (["data.decoder=dalli"], "data.decoder: expected one of pillow, dali, found 'dalli'"),
    ],
)
def test_what_cannot_be_trained_on_is_said(called: Command, folder: Path, settings: list[str], said: str) -> None:
    done = called("train", "vit_tiny", *options(folder, *settings), "--out", "out")
    assert done.returncode == 2
    assert re.search(said, " ".join(done.stderr.split()))


def test_photographs_are_for_vision_transformers(folder: Path) -> None:
    with pytest.raises(InputError, match=r"gpt_tiny does not train on photographs"):
        override(find_preset("gpt_tiny")(), [f"data.images={folder}"])


def test_a_decoder_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"data.decoder=dali: the digits are not decoded"):
        override(find_preset("vit_tiny")(), ["data.decoder=dali"])


@pytest.mark.skipif(HAS_DALI, reason="DALI is installed")
def test_without_dali_the_error_says_what_to_install(folder: Path) -> None:
    with pytest.raises(ToolError, match=r"DALI is not installed") as caught:
        read_photographs(folder, SIDE, 2, "dali")
    assert "data.decoder=pillow" in str(caught.value.hint)


def test_fewer_are_held_out_of_a_large_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_models.data.photographs.MOST_HELD_OUT", 3)
    data = read_photographs(folder, SIDE, 2, "pillow")
    assert isinstance(data.train, Photographs)
    assert (len(data.train), len(data.held_out)) == (57, 3)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Five files of two classes, and one that is no JPEG."""
    for name in ("b/2.jpg", "a/1.jpg", "b/1.jpg", "a/0.jpg", "b/3.jpg", "a/readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_files_are_listed_in_order_with_the_number_of_their_class(classes: Path) -> None:
    paths, labels = list_jpegs(classes)
    assert [str(path.relative_to(classes)) for path in paths] == ["a/0.jpg", "a/1.jpg", "b/1.jpg", "b/2.jpg", "b/3.jpg"]
    assert labels == [0, 0, 1, 1, 1]
