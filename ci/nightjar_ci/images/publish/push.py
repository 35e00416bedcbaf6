"""How does an image of this machine's engine get into a registry? Blobs, manifest, documents beside it, and its own
tag.

In: tags of the engine, a repository, a date, test verdicts and lock files. Out: `NAME-DATE-OS-ARCHITECTURE` in the
registry, with SBOM, provenance and verdict beside it. Nothing that anyone pulls by the name of a night moves here
(`publish` does that). An interrupted push is run again: what is there is not sent again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.publish.artifacts import PROVENANCE_TYPE, SBOM_TYPE, TESTS_TYPE, attach
from nightjar_ci.images.publish.layer_blob import DEFAULT, Compression
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.pack import PackedImage, Packer
from nightjar_ci.images.publish.provenance import render_provenance
from nightjar_ci.images.publish.sbom import read_locked_hashes, render_sbom
from nightjar_ci.images.publish.tags import dated_tag, image_name
from nightjar_ci.images.tested import TestedImage
from nightjar_ci.web.registry import MANIFEST_TYPE, AbsentError, Repository, digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is known of the build, besides the images.

    Attributes:
        locks: lock files by path relative to the checkout, to their text.
        builder: address of the workflow run that built, or an urn for a person's machine.
        invocation: id of that run.
    """

    locks: Mapping[str, str]
    builder: str
    invocation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What one image became in the registry."""

    name: str
    platform: str
    tag: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """What a push did: `sent_bytes` is what the registry did not have yet."""

    images: tuple[Pushed, ...]
    sent_bytes: int


def push_images(
    tags: Sequence[str],
    repository: Repository,
    day: str,
    *,
    tested: Mapping[str, TestedImage],
    source: Source,
    memory: Path,
    on_step: Callable[[str], None],
    compression: Compression = DEFAULT,
) -> PushReport:
    """Pushes images of one date.

    Args:
        tags: what the engine calls them; none where nothing was built.
        repository: where to.
        day: the night.
        tested: verdicts by tag; an image without one can wait there, and is not published.
        source: what the SBOM and the provenance say of the build.
        memory: folder that remembers packed layers.
        on_step: called with a line for each step.
        compression: of the layers.

    Raises:
        InputError: the night is published already with another image, or a verdict is about another build.
        NightjarError: the engine or the registry does not answer or refuses.
    """
    names = {tag: image_name(tag) for tag in tags}
    for tag in tags:
        check_tested(tag, tested.get(tag))
    if not tags:
        return PushReport(images=(), sent_bytes=0)
    repository.find_digest(dated_tag(names[tags[0]], day))  # no registry, no right to read: said before any packing
    sent: list[int] = []

    def upload(digest: str, content: Path | bytes) -> None:
        if repository.put_blob(digest, content):
            sent.append(len(content) if isinstance(content, bytes) else content.stat().st_size)

    memory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nightjar-push-") as scratch:
        packed = Packer(Path(scratch), memory, repository.has_blob, upload, on_step, compression).pack(tags)
    for tag in tags:
        check_immutable(repository, names[tag], day, packed[tag])
    pushed = []
    for tag in tags:
        upload(packed[tag].id, packed[tag].config)
        pushed.append(push_packed(packed[tag], repository, names[tag], day, tested=tested.get(tag), source=source))
        on_step(f"pushed {pushed[-1].tag}")
    return PushReport(images=tuple(pushed), sent_bytes=sum(sent))


def check_tested(tag: str, tested: TestedImage | None) -> None:
    """Refuses an image that the engine lacks, and a verdict on another build.

    Raises:
        InputError: there is no such image, or what was tested is not what would be pushed.
        ToolError: the engine does not answer.
    """
    found = inspect_image(tag)
    if found is None:
        raise InputError(f"{tag}: the engine has no such image.", "nightjar-ci images build")
    if tested is not None and tested.id != found["Id"]:
        raise InputError(
            f"{tag}: the report is of {tested.id[:19]}, the engine holds {str(found['Id'])[:19]}.",
            "test again what is pushed: nightjar-ci images test --report FILE",
        )


def check_immutable(repository: Repository, name: str, day: str, image: PackedImage) -> None:
    """Refuses to change a night that is published.

    Raises:
        InputError: it is published with another image of this platform, or without this platform.
    """
    tag = dated_tag(name, day)
    try:
        index, _ = repository.read_manifest(tag)
    except AbsentError:
        return
    there = read_platforms(index)
    mine = digest_of(image.manifest)
    if there.get(image.platform) != mine:
        raise InputError(
            f"{repository.name}:{tag} is published with {there.get(image.platform, 'no image')} for {image.platform}, "
            f"this is {mine}: a published night never changes.",
            "push it under another --date",
        )


def push_packed(
    image: PackedImage, repository: Repository, name: str, day: str, *, tested: TestedImage | None, source: Source
) -> Pushed:
    """Pushes what is left of an image once its blobs are there: manifest, documents beside it, its own tag.

    Raises:
        NightjarError: the registry does not answer or refuses.
    """
    manifest = image.manifest
    digest = digest_of(manifest)
    repository.put_manifest(digest, manifest, MANIFEST_TYPE)
    waiting = dated_tag(name, day, image.platform)
    hashes = read_locked_hashes(source.locks.values())
    sbom = render_sbom(
        name=name,
        digest=digest,
        created=json.loads(image.config).get("created"),
        python=image.python,
        system=image.system,
        hashes=hashes,
    )
    provenance = render_provenance(
        subject=f"{repository.name}:{waiting}",
        digest=digest,
        target=image.tags[0],
        platform=image.platform,
        labels=image.labels,
        locks={path: hashlib.sha256(text.encode()).hexdigest() for path, text in source.locks.items()},
        builder=source.builder,
        invocation=source.invocation,
    )
    for kind, document in ((SBOM_TYPE, sbom), (PROVENANCE_TYPE, provenance)):
        attach(repository, manifest, MANIFEST_TYPE, kind, json.dumps(document, indent=1, sort_keys=True).encode())
    if tested is not None:
        attach(repository, manifest, MANIFEST_TYPE, TESTS_TYPE, tested.model_dump_json().encode())
    repository.put_manifest(waiting, manifest, MANIFEST_TYPE)  # last: whoever finds the tag finds everything
    size = len(image.config) + sum(layer.size_bytes for layer in image.layers)
    return Pushed(name=name, platform=image.platform, tag=waiting, digest=digest, size_bytes=size)
