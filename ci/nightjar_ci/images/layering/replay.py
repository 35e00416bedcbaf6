"""What do users download who pull an image every night, and how should its packages be put in layers? Pure.

In: what each night resolved to, with the size of every wheel, and a layout: a function from package to layer. Out:
bytes pulled over all nights, changes of each layer, and which package would be cheaper in a layer of its own. A layer
whose packages are the same as yesterday's is the same blob and costs nothing; a wheel's size stands for its share of
the compressed layer (both are deflated).

The cost of a layout over N nights is the sum over its layers of (changes of the layer) x (its size), so it grows with
the nights on which something changes, not with the nights: a quiet night is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

LEAST_SAVING_BYTES = 100_000_000  # below it a further layer is not worth its requests

Layout = Callable[[str], str]


@dataclass(frozen=True, slots=True, order=True)
class Wheel:
    """A file that a night installs."""

    name: str
    version: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedNight:
    """What the newest versions of one night are."""

    day: date
    wheels: tuple[Wheel, ...]

    @property
    def size_bytes(self) -> int:
        """Of all wheels."""
        return sum(wheel.size_bytes for wheel in self.wheels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """What one layer costs over all nights; the first pull is counted."""

    name: str
    pulls: int
    size_bytes: int
    pulled_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """What a layout costs over all nights."""

    nights: int
    changed_nights: int
    layers: tuple[LayerCost, ...]

    @property
    def pulled_bytes(self) -> int:
        """Of all layers and nights, the first pull included."""
        return sum(layer.pulled_bytes for layer in self.layers)


def one_layer(package: str) -> str:
    """The layout of `RUN pip install`."""
    return "all"


def layer_per_package(package: str) -> str:
    """The finest layout: no other pulls less."""
    return package


def replay(nights: Sequence[ResolvedNight], layout: Layout) -> ReplayCost:
    """The cost of pulling every night.

    Args:
        nights: in order of their day.
        layout: package to layer.
    """
    pulls: dict[str, list[int]] = {}
    changed, before = 0, dict[str, frozenset[Wheel]]()
    for night in nights:
        now = _group(night, layout)
        fresh = [name for name, wheels in now.items() if before.get(name) != wheels]
        for name in fresh:
            pulls.setdefault(name, []).append(sum(wheel.size_bytes for wheel in now[name]))
        changed += bool(fresh)
        before = now
    layers = [
        LayerCost(name=name, pulls=len(sizes), size_bytes=sizes[-1], pulled_bytes=sum(sizes))
        for name, sizes in pulls.items()
    ]
    ordered = tuple(sorted(layers, key=lambda layer: -layer.pulled_bytes))
    return ReplayCost(nights=len(nights), changed_nights=changed, layers=ordered)


def count_changes(nights: Sequence[ResolvedNight]) -> dict[str, int]:
    """How often each package changed, came or went; those that changed most come first."""
    counts: dict[str, int] = {}
    for before, after in pairwise(nights):
        for name in {wheel.name for wheel in set(before.wheels) ^ set(after.wheels)}:
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def find_savings(nights: Sequence[ResolvedNight], layout: Layout) -> dict[str, int]:
    """The packages that a layer of their own would make cheaper: bytes saved over all nights, most first.

    Only savings of at least LEAST_SAVING_BYTES are told.
    """
    total = replay(nights, layout).pulled_bytes
    saved = {}
    for package in sorted({wheel.name for night in nights for wheel in night.wheels}):
        alone = replay(nights, lambda name, one=package: f"{name} alone" if name == one else layout(name))  # type: ignore[misc]
        if (saving := total - alone.pulled_bytes) >= LEAST_SAVING_BYTES:
            saved[package] = saving
    return dict(sorted(saved.items(), key=lambda item: -item[1]))


def _group(night: ResolvedNight, layout: Layout) -> dict[str, frozenset[Wheel]]:
    groups: dict[str, set[Wheel]] = {}
    for wheel in night.wheels:
        groups.setdefault(layout(wheel.name), set()).add(wheel)
    return {name: frozenset(wheels) for name, wheels in groups.items()}
