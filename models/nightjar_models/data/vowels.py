"""Restoring left-out vowels: a task for an encoder-decoder, from the text that ships.

In: the documentation inside scikit-learn (`text.py`). Out: its lower-case words without their vowels, and as they were,
as numbered letters, both ended and filled up: `th vwls f ths` and `the vowels of this`. The last tenth is held out.
Consonants are copied in order, vowels guessed from their context: neither works without looking at the source.
"""

from __future__ import annotations

import re
import string

import numpy as np
from numpy.typing import NDArray

from nightjar_models.data.pipeline import Data, Example, Examples, Index, digest
from nightjar_models.data.text import HELD_OUT_WINDOWS, TRAIN_FRACTION, documentation
from nightjar_models.errors import InputError

PADDING, END = 0, 1
LETTERS = " " + string.ascii_lowercase
VOCABULARY = END + 1 + len(LETTERS)
_IS_VOWEL = np.isin(np.arange(VOCABULARY), [END + 1 + LETTERS.index(vowel) for vowel in "aeiou"])


class Pairs(Examples):
    """Stretches of text without and with their vowels, as `source` int32 [S] and `target` int32 [T].

    Args:
        text: numbered letters.
        starts: where each stretch starts.
        length: S; the stretches fit.
        target_length: T.
    """

    def __init__(self, text: NDArray[np.uint8], starts: NDArray[np.int64], length: int, target_length: int) -> None:
        self._text, self._starts = text, starts
        self._length, self._target_length = length, target_length

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: Index) -> Example:
        """One stretch or several."""
        target = np.full((*np.shape(index), self._target_length), END, np.int32)
        target[..., :-1] = self._text[self._starts[index, None] + np.arange(self._target_length - 1)]
        kept = ~_IS_VOWEL[target]
        source = np.full((*np.shape(index), self._length), PADDING, np.int32)
        source[np.arange(self._length) < kept.sum(axis=-1, keepdims=True)] = target[kept]
        return {"source": source, "target": target}


def read_vowels(length: int, target_length: int, vocabulary: int) -> Data:
    """Every stretch of `target_length - 1` letters from a word's start whose consonants fit into `length - 1`."""
    if vocabulary < VOCABULARY:
        raise InputError(f"model.vocabulary: expected at least {VOCABULARY} (letters), found {vocabulary}.")
    text = number(documentation())
    cut = int(len(text) * TRAIN_FRACTION)
    starts, others = (find_stretches(part, length, target_length) for part in (text[:cut], text[cut:]))
    if not len(starts) or not len(others):
        raise InputError(
            f"model.length: expected room for a stretch without its vowels, found {length} letters for "
            f"{target_length} of target_length.",
            "a stretch is two thirds as long without its vowels",
        )
    chosen = others[np.linspace(0, len(others) - 1, min(HELD_OUT_WINDOWS, len(others))).astype(np.int64)]
    train = Pairs(text[:cut], starts, length, target_length)
    held_out = Pairs(text[cut:], chosen, length, target_length)
    return Data(
        train=train,
        held_out=held_out,
        augment=None,
        digest=digest(text, starts, chosen),
        trivial=guess(train[np.arange(0, len(train), 8)]["target"], held_out[np.arange(len(held_out))]["target"]),
    )


def number(text: str) -> NDArray[np.uint8]:
    """The words of a text as numbered letters, one space between two.

    >>> number("A: b").tolist()
    [3, 2, 4]
    """
    words = " ".join(re.findall(r"[a-z]+", text.lower()))
    table = np.zeros(128, np.uint8)
    table[list(LETTERS.encode())] = np.arange(END + 1, VOCABULARY)
    return table[np.frombuffer(words.encode(), np.uint8)]


def find_stretches(text: NDArray[np.uint8], length: int, target_length: int) -> NDArray[np.int64]:
    """Where words start whose next `target_length - 1` letters are there and hold fewer than `length` consonants."""
    before = np.concatenate([[0], np.cumsum(~_IS_VOWEL[text])])
    starts = np.flatnonzero(np.concatenate([[True], text[:-1] == END + 1]))
    ends = starts + target_length - 1
    starts, ends = starts[ends <= len(text)], ends[ends <= len(text)]
    fitting: NDArray[np.int64] = starts[before[ends] - before[starts] < length]
    return fitting


def guess(train: NDArray[np.int32], held_out: NDArray[np.int32]) -> dict[str, float]:
    """Scores on targets of answers that never look at the source: by frequency, and by the letter before."""
    counts = np.ones((VOCABULARY, VOCABULARY))  # add-one smoothing
    np.add.at(counts, _pairs(train), 1.0)
    before, letter = _pairs(held_out)
    single = counts.sum(axis=0) / counts.sum()
    pairs = counts / counts.sum(axis=1, keepdims=True)
    return {
        "unigram_loss": float(-np.log(single[letter]).mean()),
        "bigram_loss": float(-np.log(pairs[before, letter]).mean()),
        "bigram_accuracy": float((counts.argmax(axis=1)[before] == letter).mean()),
    }


def _pairs(targets: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Each letter behind the one before it."""
    return np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=PADDING).reshape(-1), targets.reshape(-1)
