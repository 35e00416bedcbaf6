"""JPEG files for tests and benchmarks: crops of scikit-learn's two sample photographs.

In: a folder and a number of images. Out: `FOLDER/CLASS/NUMBER.jpg`, the class being the photograph. Needs Pillow.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

QUALITY = 90
SMALLEST, LARGEST = 160, 420  # sides of a crop in pixels; the photographs have 427 x 640


def write_jpegs(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Writes crops of random place and size, half of each photograph.

    Returns:
        The files, sorted by path.
    """
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images()
    rng = np.random.default_rng(seed)
    written = []
    for number in range(count):
        which = number % len(photographs.images)
        picture = photographs.images[which]
        height, width = rng.integers(SMALLEST, LARGEST, 2)
        top, left = rng.integers(0, picture.shape[0] - height), rng.integers(0, picture.shape[1] - width)
        path = folder / Path(photographs.filenames[which]).stem / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        crop = np.ascontiguousarray(picture[top : top + height, left : left + width])
        Image.fromarray(crop).save(path, quality=QUALITY)
        written.append(path)
    return sorted(written)


def list_jpegs(folder: Path) -> tuple[list[Path], list[int]]:
    """The files of `FOLDER/CLASS/*.jpg`, or `.JPEG`, in order, and the number of the class of each."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    pairs = [(path, label) for label, entry in enumerate(classes) for path in sorted(entry.iterdir()) if is_jpeg(path)]
    return [path for path, _ in pairs], [label for _, label in pairs]


def is_jpeg(path: Path) -> bool:
    """Whether a file name is a JPEG's.

    >>> is_jpeg(Path("n01440764_10026.JPEG")), is_jpeg(Path("readme.txt"))
    (True, False)
    """
    return path.suffix.lower() in (".jpg", ".jpeg")
