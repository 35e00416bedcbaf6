"""The push of engine images to a registry: blobs, manifest, attached documents, and a tag per platform.

In: tags of the engine, a repository, a date, test reports and lock files. Out: `NAME-DATE-OS-ARCHITECTURE` in the
registry, with SBOM, provenance and test report attached. The tags that users pull do not change here (see `publish`).
An interrupted push can be repeated: blobs that the registry has are not sent again.

Source: in-toto.io/Statement/v1 and slsa.dev/spec/v1.0/provenance, for the provenance.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightjar_ci.errors import InputError
from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.publish.artifacts import PINS_TYPE, PROVENANCE_TYPE, SBOM_TYPE, TESTS_TYPE, attach
from nightjar_ci.images.publish.layer_blob import DEFAULT, Compression
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.pack import PackedImage, Packer
from nightjar_ci.images.publish.pins import render_pins
from nightjar_ci.images.publish.sbom import read_locked_hashes, render_sbom
from nightjar_ci.images.publish.tags import check_not_future, dated_tag, image_name
from nightjar_ci.images.tested import TestedImage
from nightjar_ci.web.registry import MANIFEST_TYPE, AbsentError, Repository, digest_of

_LOCK = ".lock"


STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:nightjar:images:bake:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The inputs of the build.

    Attributes:
        locks: path of each lock file, relative to the checkout, to its text.
        pins: path of each file that `images lock --of` brings back, to its text: the locks and their inputs.
        builder: URL of the workflow that built the images, or a URN for a local machine.
        invocation: id of the workflow's run.
    """

    locks: Mapping[str, str]
    pins: Mapping[str, str] = field(default_factory=dict)
    builder: str
    invocation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A pushed image in the registry."""

    name: str
    platform: str
    tag: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReport:
    """The result of a push; `sent_bytes` counts the blobs that the registry did not have yet."""

    images: tuple[Pushed, ...]
    sent_bytes: int


def push_images(
    tags: Sequence[str],
    repository: Repository,
    day: str,
    *,
    tested: Mapping[str, TestedImage],
    source: Source,
    layer_cache: Path,
    on_step: Callable[[str], None],
    compression: Compression = DEFAULT,
) -> PushReport:
    """Pushes images of one date.

    Args:
        tags: in the engine; may be empty.
        tested: test results by tag; an image without one is pushed, but cannot be published.
    """
    names = {tag: image_name(tag) for tag in tags}
    for tag in tags:
        check_tested(tag, tested.get(tag))
    if not tags:
        return PushReport(images=(), sent_bytes=0)
    check_not_future(day, repository.read_date())  # fails before packing if the registry cannot be read
    sent: list[int] = []

    def upload(digest: str, path: Path) -> None:
        if repository.put_blob(digest, path):
            sent.append(path.stat().st_size)

    layer_cache.mkdir(parents=True, exist_ok=True)
    with open_scratch("nightjar-push-") as scratch:
        packed = Packer(scratch, layer_cache, repository.has_blob, upload, on_step, compression).pack(tags)
    for tag in tags:
        check_immutable(repository, names[tag], day, packed[tag])
    pushed = []
    for tag in tags:
        if repository.put_blob(packed[tag].id, packed[tag].config):
            sent.append(len(packed[tag].config))
        pushed.append(push_packed(packed[tag], repository, names[tag], day, tested=tested.get(tag), source=source))
        on_step(f"pushed {pushed[-1].tag}")
    return PushReport(images=tuple(pushed), sent_bytes=sum(sent))


def check_tested(tag: str, tested: TestedImage | None) -> None:
    """Checks that the engine has an image and that the test result is of this build."""
    inspected = inspect_image(tag)
    if inspected is None:
        raise InputError(f"{tag}: the engine has no such image.", "nightjar-ci images build")
    if tested is not None and tested.id != inspected["Id"]:
        raise InputError(
            f"{tag}: the test report is of {tested.id[:19]}, but the engine has {str(inspected['Id'])[:19]}.",
            "test this build: nightjar-ci images test --report FILE",
        )


def check_immutable(repository: Repository, name: str, day: str, image: PackedImage) -> None:
    tag = dated_tag(name, day)
    try:
        index, _ = repository.read_manifest(tag)
    except AbsentError:
        return
    published = read_platforms(index).get(image.platform)
    digest = digest_of(image.manifest)
    if published != digest:
        raise InputError(
            f"{repository.name}:{tag} is already published with {published or 'no image'} for {image.platform}; "
            f"{digest} cannot replace it.",
            "push it under another --date",
        )


def push_packed(
    image: PackedImage, repository: Repository, name: str, day: str, *, tested: TestedImage | None, source: Source
) -> Pushed:
    """Pushes the manifest, the attached documents and the tag of an image whose blobs are uploaded."""
    manifest = image.manifest
    digest = digest_of(manifest)
    repository.put_manifest(digest, manifest, MANIFEST_TYPE)
    tag = dated_tag(name, day, image.platform)
    sbom = render_sbom(
        name=name,
        digest=digest,
        created=json.loads(image.config).get("created"),
        python=image.python,
        system=image.system,
        origins=image.origins,
        licences=image.licences,
        release=image.release,
        hashes=read_locked_hashes(source.locks.values()),
    )
    provenance = render_provenance(
        subject=f"{repository.name}:{tag}",
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
    if source.pins:
        attach(repository, manifest, MANIFEST_TYPE, PINS_TYPE, render_pins(source.pins))
    if tested is not None:
        attach(repository, manifest, MANIFEST_TYPE, TESTS_TYPE, tested.model_dump_json().encode())
    repository.put_manifest(tag, manifest, MANIFEST_TYPE)  # last, so that a tagged image is complete
    size = len(image.config) + sum(layer.size_bytes for layer in image.layers)
    return Pushed(name=name, platform=image.platform, tag=tag, digest=digest, size_bytes=size)


@contextmanager
def open_scratch(prefix: str) -> Iterator[Path]:
    """A new scratch folder, after the removal of those that killed processes of this user left."""
    _sweep(prefix)
    while True:
        temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        with temporary as folder, Path(folder, _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if Path(folder, _LOCK).exists():  # else another process swept the folder just before the lock
                yield Path(folder)
                return


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, or not a folder of ours


def render_provenance(
    *,
    subject: str,
    digest: str,
    target: str,
    platform: str,
    labels: Mapping[str, str],
    locks: Mapping[str, str],
    builder: str,
    invocation: str | None,
) -> dict[str, Any]:
    """The provenance of an image of one platform.

    Args:
        labels: of the image; the standard ones give its revision and base.
        locks: path of each lock file to its SHA-256.
    """
    revision = labels.get("org.opencontainers.image.revision", "")
    commit, _, dirty = revision.partition("-")
    dependencies: list[dict[str, Any]] = [
        {"uri": path, "digest": {"sha256": sha256}} for path, sha256 in sorted(locks.items())
    ]
    if commit:
        source = labels.get("org.opencontainers.image.source") or "urn:nightjar:source"
        dependencies.insert(0, {"uri": f"git+{source}" if "://" in source else source, "digest": {"gitCommit": commit}})
    if base := labels.get("org.opencontainers.image.base.name"):
        dependency: dict[str, Any] = {"uri": f"pkg:docker/{base}"}
        algorithm, _, value = labels.get("org.opencontainers.image.base.digest", "").partition(":")
        if value:
            dependency["digest"] = {algorithm: value}
        elif layers := labels.get("nightjar.base.layers", "").split():  # the base was never in a registry
            dependency["annotations"] = {"layers": layers}
        dependencies.append(dependency)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"target": target, "platform": platform, "workingTreeChanged": bool(dirty)},
                "internalParameters": {"labels": dict(sorted(labels.items()))},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": builder},
                "metadata": {"invocationId": invocation} if invocation else {},
            },
        },
    }
