"""JPEGs in folders of classes reach JAX in batches: in order, each once, laid over a mesh."""

from pathlib import Path

import jax
import numpy as np
import pytest

from nightjar_models.data import photographs
from nightjar_models.data.dali import dali_batches
from nightjar_models.data.jpegs import lay_out, list_jpegs
from nightjar_models.data.photographs import grain_batches


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files of two classes, and one that is no JPEG."""
    for name in ("b/2.jpg", "a/1.jpg", "b/1.jpg", "a/0.jpg", "b/3.jpg", "a/readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_files_are_listed_in_order_with_the_number_of_their_class(folder: Path) -> None:
    paths, labels = list_jpegs(folder)
    assert [str(path.relative_to(folder)) for path in paths] == ["a/0.jpg", "a/1.jpg", "b/1.jpg", "b/2.jpg", "b/3.jpg"]
    assert labels == [0, 0, 1, 1, 1]


def test_files_come_once_an_epoch_in_whole_batches_over_the_mesh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = {path: index for index, path in enumerate(list_jpegs(folder)[0])}
    monkeypatch.setattr(photographs, "decode_jpeg", lambda path, side: np.full((side, side, 3), number[path], np.uint8))
    mesh = jax.make_mesh((1,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))  # type: ignore[no-untyped-call]
    ordered = list(grain_batches(folder, batch_size=2, side=4, shuffle=False, sharding=sharding))
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in ordered] == [[0, 1], [2, 3]]
    assert [batch["label"].tolist() for batch in ordered] == [[0, 0], [1, 1]]
    assert ordered[0]["image"].sharding == sharding
    shuffled = list(grain_batches(folder, batch_size=5, side=4, seed=1))
    assert sorted(shuffled[0]["image"][:, 0, 0, 0].tolist()) == [0, 1, 2, 3, 4]


def test_without_a_mesh_an_array_lies_on_the_default_device() -> None:
    assert lay_out(np.arange(3), None).devices() == {jax.devices()[0]}


@pytest.mark.gpu
def test_dali_decodes_on_the_gpu_what_grain_decodes_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    pillow = pytest.importorskip("PIL.Image")
    for number in range(4):
        path = tmp_path / f"class{number // 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        pillow.new("RGB", (32, 24), (60 * number, 200, 30)).save(path, quality=95)
    ours = next(iter(grain_batches(tmp_path, batch_size=4, side=16, shuffle=False)))
    theirs = next(iter(dali_batches(tmp_path, batch_size=4, side=16, shuffle=False, device_id=0)))
    assert {device.platform for device in theirs["image"].devices()} == {"gpu"}
    assert theirs["label"].tolist() == ours["label"].tolist() == [0, 0, 1, 1]
    difference = np.asarray(theirs["image"], np.int32) - np.asarray(ours["image"], np.int32)
    assert np.abs(difference).max() <= 4  # of 255: two decoders round colours differently
