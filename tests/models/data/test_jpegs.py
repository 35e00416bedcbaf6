"""JPEGs in folders of classes are listed in order."""

from pathlib import Path

import pytest

from nightjar_models.data.jpegs import list_jpegs


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
