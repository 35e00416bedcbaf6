"""The difference between two images: changed packages, and the bytes that an owner of the old one pulls. Pure.

In: the layers (digest, compressed size) and packages of both. Out: changed packages, and for each layer of the new
image whether it is pulled. A layer whose digest the old image has is not pulled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nightjar_ci.jax_nightly.commits import REPOSITORIES


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContent:
    """One layer.

    Attributes:
        packages: the packages that it adds, `name==version`; None if unknown.
    """

    digest: str
    size_bytes: int
    packages: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContent:
    """One image.

    Attributes:
        python, system: packages, name to version; None if unknown.
        commits: `jax` and `xla` of a nightly JAX, as far as they are known.
    """

    name: str
    layers: tuple[LayerContent, ...]
    python: Mapping[str, str] | None = None
    system: Mapping[str, str] | None = None
    commits: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The size of a first pull: all layers, each counted once."""
        return sum({layer.digest: layer.size_bytes for layer in self.layers}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """A changed package; `before` is None if it is new, `after` if it is gone."""

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
    """The output of `images diff`.

    Attributes:
        python, system: changes; None if the packages of one image are unknown.
        pulled_bytes: download size of the new image for an owner of the old one.
        total_bytes: download size for everybody else.
        commits: `jax` and `xla` to the web page of the commits between both images, if they differ.
    """

    old: str
    new: str
    python: tuple[PackageChange, ...] | None
    system: tuple[PackageChange, ...] | None
    layers: tuple[LayerChange, ...] = field(default=())
    pulled_bytes: int
    total_bytes: int
    commits: Mapping[str, str] = field(default_factory=dict)


def compare_images(old: ImageContent, new: ImageContent) -> ImageDifference:
    local = {layer.digest for layer in old.layers}
    layers = []
    for layer in new.layers:
        layers.append(
            LayerChange(
                digest=layer.digest,
                size_bytes=layer.size_bytes,
                pulled=layer.digest not in local,
                packages=layer.packages,
            )
        )
        local.add(layer.digest)  # a layer that occurs twice is pulled once
    return ImageDifference(
        old=old.name,
        new=new.name,
        python=compare_packages(old.python, new.python),
        system=compare_packages(old.system, new.system),
        layers=tuple(layers),
        pulled_bytes=sum(layer.size_bytes for layer in layers if layer.pulled),
        total_bytes=new.size_bytes,
        commits={
            name: f"{repository}/compare/{old.commits[name]}...{new.commits[name]}"
            for name, repository in REPOSITORIES.items()
            if old.commits.get(name, "") != new.commits.get(name, "") and name in old.commits and name in new.commits
        },
    )


def compare_packages(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> tuple[PackageChange, ...] | None:
    """The packages whose versions differ, by name; None if one side is unknown.

    >>> compare_packages({"jax": "1", "six": "1"}, {"jax": "2", "six": "1"})
    (PackageChange(name='jax', before='1', after='2'),)
    """
    if old is None or new is None:
        return None
    names = sorted({name for name in {**old, **new} if old.get(name) != new.get(name)})
    return tuple(PackageChange(name=name, before=old.get(name), after=new.get(name)) for name in names)


def render_difference(difference: ImageDifference) -> str:
    lines = [f"{difference.old} -> {difference.new}", ""]
    for title, changes in (("Python packages", difference.python), ("Debian packages", difference.system)):
        if changes is None:
            lines += [f"{title}: unknown for one of the images", ""]
        elif changes:
            lines.append(title)
            lines += [f"  {change.name:<28} {change.before or '-':>16} -> {change.after or '-'}" for change in changes]
            lines.append("")
        else:
            lines += [f"{title}: the same", ""]
    for name, link in difference.commits.items():
        lines += [f"Commits of {name}: {link}", ""]
    lines.append("Layers")
    for layer in difference.layers:
        state = "pull" if layer.pulled else "have"
        packages = _shorten(layer.packages or ())
        lines.append(f"  {state}  {layer.digest[:19]}  {layer.size_bytes / 1e6:>8.1f} MB  {packages}".rstrip())
    pulled = sum(layer.pulled for layer in difference.layers)
    lines.append(
        f"\nTo pull: {difference.pulled_bytes / 1e6:.1f} MB in {pulled} of {len(difference.layers)} layers"
        f" (all: {difference.total_bytes / 1e6:.1f} MB)"
    )
    return "\n".join(lines)


def _shorten(packages: tuple[str, ...], shown: int = 4) -> str:
    text = ", ".join(packages[:shown])
    if len(packages) > shown:
        text += f" and {len(packages) - shown} more"
    return text
