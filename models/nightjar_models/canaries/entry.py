"""A public defect, a computation that shows it, what that should give, and the releases in which it was looked at.

In: the table of a module of this room (`CANARIES`). Out: the fault of the installed release, or None.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A public defect and the smallest computation that shows it.

    Attributes:
        name: of the test, unique among all entries.
        issue: the issue or pull request that reports it, such as "jax-ml/jax#38243".
        compute: the value to look at; an exception of the type `error` is the defect, any other a crash.
        expected: the right value: a number, a list of numbers, or a shape.
        seen: releases of `package` in which the value was wrong.
        right: the first release in which the value was seen right; None where no release is known.
        package: whose releases these are.
        tolerance: relative; 0 for an exact value.
        double: whether JAX computes with 64 bits.
        error: the exception that users meet in place of a value.
    """

    name: str
    issue: str
    compute: Callable[[], object]
    expected: object
    seen: tuple[str, ...]
    right: str | None = None
    package: str = "jax"
    tolerance: float = 1e-4
    double: bool = False
    error: type[Exception] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one look at a defect found.

    Attributes:
        canary: the entry.
        wrong: the wrong value and the right one; None where the value is right.
        release: of the entry's package.
    """

    canary: Canary
    wrong: str | None
    release: str

    @property
    def is_mended_later(self) -> bool:
        """Whether the value is wrong in a release before the one that mended it, which is no news."""
        right = self.canary.right
        return self.wrong is not None and right is not None and order(self.release) < order(right)

    @property
    def verdict(self) -> str:
        """ "fixed", "still broken", or "new" where a defect is back after the release that mended it."""
        if self.wrong is None:
            return "fixed"
        return "still broken" if self.canary.right is None or self.is_mended_later else "new"


def order(release: str) -> list[int]:
    """The numbers of a release, which order releases.

    >>> order("0.10.2") < order("0.12.0.1") < order("0.12.1.dev20261125")
    True
    """
    return [int(number) for number in re.findall(r"\d+", release)]


def look(canary: Canary) -> Finding:
    """Computes an entry with the installed release."""
    release = importlib.metadata.version(canary.package)
    return Finding(canary=canary, wrong=find_difference(canary), release=release)


def find_difference(canary: Canary) -> str | None:
    """The wrong value and the right one; None if both agree, a NaN with a NaN."""
    try:
        with jax.enable_x64(canary.double):
            value = np.asarray(canary.compute())
    except Exception as error:
        if canary.error is None or not isinstance(error, canary.error):
            raise
        return f"{type(error).__name__} in place of {canary.expected}"
    expected = np.asarray(canary.expected)
    same_shape = value.shape == expected.shape
    if same_shape and np.allclose(value, expected, rtol=canary.tolerance, atol=0, equal_nan=True):
        return None
    return f"{value.tolist()} in place of {expected.tolist()}"
