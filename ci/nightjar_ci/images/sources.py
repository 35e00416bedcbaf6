"""Image content from any source: the engine, an OCI layout, a nightly index or a registry.

In: a reference. Out: layers with their compressed sizes, and packages. The prefix of a reference names its kind;
without a prefix, the first kind that fits is taken:

    oci:FOLDER[:TAG]             an OCI layout (a folder with a file `oci-layout`)
    index:FILE.json:NAME[-DATE]  a nightly image of a nightly index, in a file or at a URL
    engine:TAG                   an image of the Docker engine; its layers are compressed once to know their sizes
    registry:HOST/PATH:TAG       an image in a registry; packages are known if its repository has a nightly index
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.content.difference import ImageContent, LayerContent
from nightjar_ci.images.content.layout import choose_platform, read_layout
from nightjar_ci.images.publish.index_store import find_image, load_index
from nightjar_ci.images.publish.nightly_index import NightlyImage, read_index_file
from nightjar_ci.images.publish.pack import Packer
from nightjar_ci.web.registry import AbsentError, Repository

KINDS = ("oci", "index", "engine", "registry")


def read_image(reference: str, *, layer_cache: Path, platform: str, on_step: Callable[[str], None]) -> ImageContent:
    kind, name = find_kind(reference)
    if kind == "oci":
        folder, _, tag = name.partition(":")
        return read_layout(Path(folder), tag or None, platform)
    if kind == "index":
        source, _, night = name.rpartition(":")
        return _from_night(reference, find_image(read_index_file(source), night), platform)
    if kind == "engine" or (kind is None and inspect_image(name) is not None):
        return read_engine(name, layer_cache, on_step)
    return read_registry(name, platform)


def find_kind(reference: str) -> tuple[str | None, str]:
    """The kind of a reference (None if its text does not tell), and the reference without its prefix.

    >>> find_kind("engine:nightjar/jax:cpu"), find_kind("nights.json:jax-cpu")
    (('engine', 'nightjar/jax:cpu'), ('index', 'nights.json:jax-cpu'))
    """
    prefix, colon, name = reference.partition(":")
    if colon and prefix in KINDS:
        return prefix, name
    if ".json:" in reference:
        return "index", reference
    if Path(prefix, "oci-layout").is_file():
        return "oci", reference
    return None, reference


def read_engine(tag: str, layer_cache: Path, on_step: Callable[[str], None]) -> ImageContent:
    """An image of the engine; its layers are compressed once, as for `images push`."""
    if inspect_image(tag) is None:
        raise InputError(f"{tag}: the engine has no such image.", "nightjar-ci images build")
    layer_cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nightjar-diff-") as scratch:
        packer = Packer(Path(scratch), layer_cache, lambda _: True, lambda *_: None, on_step)
        packed = next(iter(packer.pack([tag]).values()))
    layers = tuple(
        LayerContent(digest=layer.digest, size_bytes=layer.size_bytes, packages=layer.contents.packages)
        for layer in packed.layers
    )
    return ImageContent(name=tag, layers=layers, python=packed.python, system=packed.system)


def read_registry(reference: str, platform: str) -> ImageContent:
    """An image in a registry: layers from its manifest, packages from the nightly index if it lists the image."""
    name, separator, version = reference.partition("@")
    if not separator:
        name, version = reference, "latest"
        if ":" in reference.rpartition("/")[2]:
            name, _, version = reference.rpartition(":")
    repository = Repository(name)
    manifest, _ = repository.read_manifest(version)
    if "manifests" in manifest:
        manifest, _ = repository.read_manifest(choose_platform(manifest, platform, reference))
    layers = tuple(
        LayerContent(digest=layer["digest"], size_bytes=layer["size"]) for layer in manifest.get("layers", ())
    )
    unknown = ImageContent(name=reference, layers=layers)
    try:
        night = _from_night(reference, find_image(load_index(repository), version), platform)
    except (InputError, AbsentError):
        return unknown
    if [layer.digest for layer in night.layers] != [layer.digest for layer in layers]:
        return unknown
    return replace(unknown, python=night.python, system=night.system, commits=night.commits)


def _from_night(name: str, night: NightlyImage, platform: str) -> ImageContent:
    if platform not in night.platforms:
        platforms = ", ".join(night.platforms)
        raise InputError(f"{name}: no image for {platform}: expected one of {platforms}.", "use --platform")
    image = night.platforms[platform]
    python = {name: version for name, version in {**night.packages, **image.packages}.items() if version}
    layers = tuple(LayerContent(digest=layer.digest, size_bytes=layer.size_bytes) for layer in image.layers)
    return ImageContent(
        name=name, layers=layers, python=python, system=dict(night.system_packages), commits=night.commits
    )
