"""What is in an image, wherever it lies? In the engine, an OCI layout, a nightly index or a registry.

In: a reference. Out: layers with their compressed sizes, and packages. A reference is taken for the first of these that
fits, or for what its prefix says:

    oci:FOLDER[:TAG]             an OCI layout (a folder that holds a file `oci-layout`)
    index:FILE.json:NAME[-DATE]  a night of a nightly index, in a file or at an address
    engine:TAG                   an image of the Docker engine; its layers are packed once to know their sizes
    registry:HOST/PATH:TAG       an image in a registry; packages are known where its repository has a nightly index
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.content.difference import ImageContent, LayerContent
from nightjar_ci.images.content.layout import choose_platform, read_layout
from nightjar_ci.images.publish.index_store import find_night, load_index
from nightjar_ci.images.publish.nightly_index import Night, read_index_file
from nightjar_ci.images.publish.pack import Packer
from nightjar_ci.web.registry import AbsentError, Repository

KINDS = ("oci", "index", "engine", "registry")


def read_image(reference: str, *, memory: Path, platform: str, on_step: Callable[[str], None]) -> ImageContent:
    """What an image is made of.

    Args:
        reference: see above.
        memory: folder that remembers packed layers of the engine.
        platform: which image of an index of several, such as `linux/amd64`.
        on_step: called with a line for each step that takes long.

    Raises:
        InputError: nothing of that name is there.
        NightjarError: the engine or the registry does not answer.
    """
    kind, rest = find_kind(reference)
    if kind == "oci":
        folder, _, tag = rest.partition(":")
        return read_layout(Path(folder), tag or None, platform)
    if kind == "index":
        source, _, name = rest.rpartition(":")
        return _from_night(reference, find_night(read_index_file(source), name), platform)
    if kind == "engine" or (kind is None and inspect_image(rest) is not None):
        return read_engine(rest, memory, on_step)
    return read_registry(rest, platform)


def find_kind(reference: str) -> tuple[str | None, str]:
    """What a reference says that it is, and the rest of it; None where only looking can tell.

    >>> find_kind("engine:nightjar/jax:cpu"), find_kind("nights.json:jax-cpu")
    (('engine', 'nightjar/jax:cpu'), ('index', 'nights.json:jax-cpu'))
    """
    prefix, colon, rest = reference.partition(":")
    if colon and prefix in KINDS:
        return prefix, rest
    if ".json:" in reference:
        return "index", reference
    if Path(prefix, "oci-layout").is_file():
        return "oci", reference
    return None, reference


def read_engine(tag: str, memory: Path, on_step: Callable[[str], None]) -> ImageContent:
    """An image of the engine; its layers are compressed as `images push` does, once."""
    if inspect_image(tag) is None:
        raise InputError(f"{tag}: the engine has no such image.", "nightjar-ci images build")
    memory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nightjar-diff-") as scratch:
        packer = Packer(Path(scratch), memory, lambda _: True, lambda *_: None, on_step)
        packed = next(iter(packer.pack([tag]).values()))
    layers = tuple(
        LayerContent(
            digest=layer.digest,
            size_bytes=layer.size_bytes,
            packages=tuple(sorted(f"{name}=={version}" for name, version in layer.contents.python.values())),
        )
        for layer in packed.layers
    )
    return ImageContent(name=tag, layers=layers, python=packed.python, system=packed.system)


def read_registry(reference: str, platform: str) -> ImageContent:
    """An image in a registry, from its manifest, and its packages from the nightly index where it is a night."""
    name, separator, version = reference.partition("@")
    if not separator:
        name, _, version = (
            reference.rpartition(":") if ":" in reference.rpartition("/")[2] else (reference, "", "latest")
        )
    repository = Repository(name)
    manifest, _ = repository.read_manifest(version)
    if "manifests" in manifest:
        manifest, _ = repository.read_manifest(choose_platform(manifest, platform, reference))
    layers = tuple(LayerContent(digest=one["digest"], size_bytes=one["size"]) for one in manifest.get("layers", ()))
    try:
        night = _from_night(reference, find_night(load_index(repository), version), platform)
    except (InputError, AbsentError):
        return ImageContent(name=reference, layers=layers)
    same = [layer.digest for layer in night.layers] == [layer.digest for layer in layers]
    return ImageContent(
        name=reference, layers=layers, python=night.python if same else None, system=night.system if same else None
    )


def _from_night(name: str, night: Night, platform: str) -> ImageContent:
    if platform not in night.platforms:
        known = ", ".join(night.platforms)
        raise InputError(f"{name}: no image for {platform}: expected one of {known}.", "--platform")
    image = night.platforms[platform]
    python = {name: version for name, version in {**night.packages, **image.packages}.items() if version}
    layers = tuple(LayerContent(digest=layer.digest, size_bytes=layer.size_bytes) for layer in image.layers)
    return ImageContent(name=name, layers=layers, python=python, system=dict(night.system_packages))
