"""What changed between two images, and how much does whoever has one of them download for the other? Pure.

In: the layers (digest, compressed size) and packages of both. Out: packages that changed, and for each layer of the new
image whether it is pulled. A layer with a digest that the old image has is not pulled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContent:
    """One layer.

    Attributes:
        digest: of the compressed blob.
        size_bytes: compressed: what is pulled.
        packages: those that it adds, `name==version`; None where nobody knows.
    """

    digest: str
    size_bytes: int
    packages: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContent:
    """One image.

    Attributes:
        name: as it was asked for.
        layers: the lowest first.
        python, system: packages, name to version; None where nobody knows.
    """

    name: str
    layers: tuple[LayerContent, ...]
    python: Mapping[str, str] | None = None
    system: Mapping[str, str] | None = None

    @property
    def size_bytes(self) -> int:
        """Of all layers, each counted once: what is pulled where nothing is there yet."""
        return sum({layer.digest: layer.size_bytes for layer in self.layers}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A package that differs; `before` is None where it is new, `after` where it is gone."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """A layer of the new image, and whether it must be pulled."""

    digest: str
    size_bytes: int
    pulled: bool
    packages: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDifference:
    """What `images diff` prints.

    Attributes:
        python, system: changes; None where one of the images does not say.
        pulled_bytes: what whoever has the old image downloads for the new one.
        total_bytes: what anybody else downloads.
    """

    old: str
    new: str
    python: tuple[PackageChange, ...] | None
    system: tuple[PackageChange, ...] | None
    layers: tuple[LayerChange, ...] = field(default=())
    pulled_bytes: int
    total_bytes: int


def compare_images(old: ImageContent, new: ImageContent) -> ImageDifference:
    """The difference between two images.

    Args:
        old: the image that is there.
        new: the image that is wanted.
    """
    there = {layer.digest for layer in old.layers}
    layers = []
    for layer in new.layers:
        layers.append(
            LayerChange(
                digest=layer.digest,
                size_bytes=layer.size_bytes,
                pulled=layer.digest not in there,
                packages=layer.packages,
            )
        )
        there.add(layer.digest)  # one that stands there twice is pulled once
    return ImageDifference(
        old=old.name,
        new=new.name,
        python=compare_packages(old.python, new.python),
        system=compare_packages(old.system, new.system),
        layers=tuple(layers),
        pulled_bytes=sum(layer.size_bytes for layer in layers if layer.pulled),
        total_bytes=new.size_bytes,
    )


def compare_packages(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> tuple[PackageChange, ...] | None:
    """The packages whose versions differ, by name; None where one side is unknown.

    >>> compare_packages({"jax": "1", "six": "1"}, {"jax": "2", "six": "1"})
    (PackageChange(name='jax', before='1', after='2'),)
    """
    if old is None or new is None:
        return None
    names = sorted({name for name in {**old, **new} if old.get(name) != new.get(name)})
    return tuple(PackageChange(name=name, before=old.get(name), after=new.get(name)) for name in names)


def render_difference(difference: ImageDifference) -> str:
    """The difference as text, sizes in MB of 1,000,000 bytes."""
    lines = [f"{difference.old} -> {difference.new}", ""]
    for title, changes in (("Python packages", difference.python), ("Debian packages", difference.system)):
        if changes is None:
            lines += [f"{title}: unknown, an image does not say", ""]
        elif changes:
            lines += [
                title,
                *(f"  {one.name:<28} {one.before or '-':>16} -> {one.after or '-'}" for one in changes),
                "",
            ]
        else:
            lines += [f"{title}: the same", ""]
    lines.append("Layers")
    for layer in difference.layers:
        held = "" if layer.packages is None else _shorten(layer.packages)
        state = "pull" if layer.pulled else "have"
        lines.append(f"  {state}  {layer.digest[:19]}  {layer.size_bytes / 1e6:>8.1f} MB  {held}".rstrip())
    pulled = sum(layer.pulled for layer in difference.layers)
    lines.append(
        f"\nTo pull: {difference.pulled_bytes / 1e6:.1f} MB in {pulled} of {len(difference.layers)} layers"
        f" (all: {difference.total_bytes / 1e6:.1f} MB)"
    )
    return "\n".join(lines)


def _shorten(packages: tuple[str, ...], shown: int = 4) -> str:
    more = len(packages) - shown
    return ", ".join(packages[:shown]) + (f" and {more} more" if more > 0 else "")
