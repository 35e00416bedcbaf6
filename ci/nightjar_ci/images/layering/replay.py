"""The download cost of a layer layout for users who pull an image every night. Pure.

In: the resolved nights with the size of every wheel, and a layout: a function from package to layer. Out: bytes pulled
over all nights, the number of pulls of each layer, and packages that would be cheaper in a layer of their own. A layer
with the same packages as the night before is the same blob and costs nothing. The size of a wheel approximates its
share of the compressed layer (both are deflated).

The cost of a layout is the sum over its layers of (pulls of the layer) x (its size); nights without changes are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise

MIN_SAVING_BYTES = 100_000_000  # a smaller saving is not worth the requests of another layer

Layout = Callable[[str], str]


@dataclass(frozen=True, slots=True, order=True)
class Wheel:
    """A wheel that a night installs."""

    name: str
    version: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedNight:
    """The newest versions on one night."""

    day: date
    wheels: tuple[Wheel, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all wheels."""
        return sum(wheel.size_bytes for wheel in self.wheels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """The cost of one layer over all nights, including the first pull."""

    name: str
    pulls: int
    size_bytes: int
    pulled_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """The cost of a layout over all nights."""

    nights: int
    changed_nights: int
    layers: tuple[LayerCost, ...]

    @property
    def pulled_bytes(self) -> int:
        """The bytes of all layers and nights, including the first pull."""
        return sum(layer.pulled_bytes for layer in self.layers)


def one_layer(package: str) -> str:
    """The layout of `RUN pip install`."""
    return "all"


def layer_per_package(package: str) -> str:
    """The finest layout; no other pulls less."""
    return package


def replay(nights: Sequence[ResolvedNight], layout: Layout) -> ReplayCost:
    """The cost of pulling every night.

    Args:
        nights: in date order.
        layout: package to layer.
    """
    pulls: dict[str, list[int]] = {}
    changed_nights, before = 0, dict[str, frozenset[Wheel]]()
    for night in nights:
        layers_now = _group(night, layout)
        changed = [name for name, wheels in layers_now.items() if before.get(name) != wheels]
        for name in changed:
            pulls.setdefault(name, []).append(sum(wheel.size_bytes for wheel in layers_now[name]))
        changed_nights += bool(changed)
        before = layers_now
    layers = [
        LayerCost(name=name, pulls=len(sizes), size_bytes=sizes[-1], pulled_bytes=sum(sizes))
        for name, sizes in pulls.items()
    ]
    ordered = tuple(sorted(layers, key=lambda layer: -layer.pulled_bytes))
    return ReplayCost(nights=len(nights), changed_nights=changed_nights, layers=ordered)


def count_changes(nights: Sequence[ResolvedNight]) -> dict[str, int]:
    """The number of changes, additions and removals of each package, most first."""
    counts: dict[str, int] = {}
    for before, after in pairwise(nights):
        for name in {wheel.name for wheel in set(before.wheels) ^ set(after.wheels)}:
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def find_savings(nights: Sequence[ResolvedNight], layout: Layout) -> dict[str, int]:
    """Packages that would be cheaper in a layer of their own: bytes saved over all nights, most first.

    Savings below MIN_SAVING_BYTES are left out.
    """
    total = replay(nights, layout).pulled_bytes
    savings = {}
    for package in sorted({wheel.name for night in nights for wheel in night.wheels}):
        separate = replay(nights, _separate(package, layout))
        if (saving := total - separate.pulled_bytes) >= MIN_SAVING_BYTES:
            savings[package] = saving
    return dict(sorted(savings.items(), key=lambda item: -item[1]))


def _separate(package: str, layout: Layout) -> Layout:
    return lambda name: f"{name} alone" if name == package else layout(name)


def _group(night: ResolvedNight, layout: Layout) -> dict[str, frozenset[Wheel]]:
    groups: dict[str, set[Wheel]] = {}
    for wheel in night.wheels:
        groups.setdefault(layout(wheel.name), set()).add(wheel)
    return {name: frozenset(wheels) for name, wheels in groups.items()}
