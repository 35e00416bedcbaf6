"""English text that every environment with the same lock file shares: the documentation inside scikit-learn.

In: the installed scikit-learn. Out: its docstrings as bytes (3.5 MB of technical English), split 90/10 by position.
Unlike `pydoc_data.topics`, whose text changes with every version of Python, it is pinned by the lock file: the text is
equal on every Python, and `Data.digest` says when it is not.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightjar_models.data.pipeline import Data, Example, Examples, Index, digest
from nightjar_models.errors import NightjarError

TRAIN_FRACTION = 0.9
HELD_OUT_WINDOWS = 2048  # spread over the held-out tenth; all of them would take as long as 60 steps
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_LEFT_OUT = {"tests", "externals"}  # other projects' text, and test names rather than prose


class Windows(Examples):
    """Every stretch of `length + 1` bytes, `stride` bytes apart, as `tokens`."""

    def __init__(self, text: NDArray[np.uint8], length: int, stride: int) -> None:
        self._text, self._length, self._stride = text, length, stride

    def __len__(self) -> int:
        return max(0, (len(self._text) - self._length - 1) // self._stride + 1)

    def __getitem__(self, index: Index) -> Example:
        """One stretch or several: `tokens` int32 [..., length + 1]."""
        starts = np.asarray(index)[..., None] * self._stride
        return {"tokens": self._text[starts + np.arange(self._length + 1)].astype(np.int32)}


def read_text(length: int) -> Data:
    """The text, as windows for sequences of that length; the held-out windows do not overlap."""
    text = np.frombuffer(documentation().encode(), np.uint8)
    cut = int(len(text) * TRAIN_FRACTION)
    train, held_out = text[:cut], text[cut:]
    return Data(
        train=Windows(train, length, stride=1),
        held_out=Windows(held_out, length, stride=max(length + 1, len(held_out) // HELD_OUT_WINDOWS)),
        augment=None,
        digest=digest(text),
        trivial={"unigram_loss": unigram_loss(train, held_out), "bigram_loss": bigram_loss(train, held_out)},
    )


def documentation() -> str:
    """All docstrings of scikit-learn, in the order of the files' names; importing it would take two seconds."""
    root = Path(str(importlib.metadata.distribution("scikit-learn").locate_file("sklearn")))
    files = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    texts = [(root / path).read_text(encoding="utf-8") for path in files if not _LEFT_OUT & set(path.parts)]
    if not texts:
        raise NightjarError(f"{root}: expected scikit-learn's Python sources.", "reinstall scikit-learn from its wheel")
    return "\n".join(match[1].strip() for text in texts for match in _DOCSTRING.finditer(text))


def unigram_loss(train: NDArray[np.uint8], held_out: NDArray[np.uint8]) -> float:
    """Nats per byte when each byte is guessed by its frequency in `train` (add-one smoothing)."""
    counts = np.bincount(train, minlength=256) + 1.0
    return float(-np.log(counts / counts.sum())[held_out].mean())


def bigram_loss(train: NDArray[np.uint8], held_out: NDArray[np.uint8]) -> float:
    """Nats per byte when each byte is guessed from the one before it (add-one smoothing)."""
    pairs = train[:-1].astype(np.int64) * 256 + train[1:]
    counts = np.bincount(pairs, minlength=256 * 256).reshape(256, 256) + 1.0
    rates = np.log(counts / counts.sum(axis=1, keepdims=True))
    return float(-rates[held_out[:-1], held_out[1:]].mean())
