"""Copies of nightly images between repositories, with every attached document.

In: a repository and another one. Out: in the other one the same images under the same digests and tags, and a nightly
index that refers to it. What the other one has is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.artifacts import NIGHT_TYPE, attach, list_artifacts
from nightjar_ci.images.publish.index_store import load_index, refresh_index
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.nightly_index import NightlyImage
from nightjar_ci.images.publish.publish import describe_entry, find_rolling_date
from nightjar_ci.images.publish.scratch import open_scratch
from nightjar_ci.images.publish.tags import dated_tag
from nightjar_ci.web.registry import INDEX_TYPE, MANIFEST_TYPE, Repository

SIGNATURES = (".sig", ".att")  # ends of the tags that cosign makes of a digest


def copy_nights(
    source: Repository, target: Repository, names: Sequence[str], on_step: Callable[[str], None]
) -> tuple[str, ...]:
    """Copies the published nightly images of these names (all where none is given); returns the copied tags.

    Raises:
        InputError: the source has no such image, or the target has another one under its tag.
        NightjarError: a registry does not answer or refuses.
    """
    nights = select_nights(load_index(source).images, names)
    copied = []
    with open_scratch("nightjar-mirror-") as scratch:
        for night in nights:
            tag = dated_tag(night.name, night.date)
            digest = source.digest(tag)
            published = target.find_digest(tag)
            if published not in (None, digest):
                raise InputError(f"{target.name}:{tag} is another image, {published}.", "use another repository")
            on_step(f"copying {tag}")
            _copy_night(source, target, night, digest, scratch)
            if published is None:
                copied.append(tag)
    for name in dict.fromkeys(night.name for night in nights):
        if (date := find_rolling_date(source, name)) is not None:
            _, index = source.read_manifest(dated_tag(name, date))
            target.put_manifest(name, index, INDEX_TYPE)
    refresh_index(target)
    return tuple(copied)


def select_nights(nights: Sequence[NightlyImage], names: Sequence[str]) -> list[NightlyImage]:
    """The nightly images of these names, oldest first.

    Raises:
        InputError: a name has none.
    """
    known = {night.name for night in nights}
    for name in names:
        if name not in known:
            raise InputError(
                f"no nightly image is named {name!r}: expected one of {', '.join(sorted(known)) or 'none'}."
            )
    chosen = [night for night in nights if not names or night.name in names]
    return sorted(chosen, key=lambda night: (night.date, night.name))


def _copy_night(source: Repository, target: Repository, night: NightlyImage, digest: str, scratch: Path) -> None:
    index, body = source.read_manifest(digest)
    for platform, image in read_platforms(index).items():
        _copy_manifest(source, target, image, scratch)
        target.put_manifest(dated_tag(night.name, night.date, platform), source.read_manifest(image)[1], MANIFEST_TYPE)
    tag = dated_tag(night.name, night.date)
    target.put_manifest(tag, body, INDEX_TYPE)
    _copy_signatures(source, target, digest, scratch)
    entry = describe_entry(target, night.name, night.date, body)
    attach(target, body, INDEX_TYPE, NIGHT_TYPE, entry.model_dump_json().encode(), {"nightjar.tag": tag})


def _copy_manifest(source: Repository, target: Repository, digest: str, scratch: Path) -> None:
    """Copies an image and what is attached to it."""
    manifest, body = source.read_image(digest)
    _copy_blobs(source, target, manifest, scratch)
    target.put_manifest(digest, body, MANIFEST_TYPE)
    for artifact in list_artifacts(source, digest):
        attached, _ = source.read_image(artifact["digest"])
        document = source.read_blob(attached["layers"][0]["digest"])
        annotations = attached.get("annotations") or {}
        attach(target, body, MANIFEST_TYPE, attached["artifactType"], document, annotations)
    _copy_signatures(source, target, digest, scratch)


def _copy_signatures(source: Repository, target: Repository, digest: str, scratch: Path) -> None:
    """Copies what cosign attached to a manifest: images under tags that are made of its digest."""
    for suffix in SIGNATURES:
        tag = f"{digest.replace(':', '-')}{suffix}"
        if source.find_digest(tag) is not None:
            manifest, body = source.read_image(tag)
            _copy_blobs(source, target, manifest, scratch)
            target.put_manifest(tag, body, MANIFEST_TYPE)


def _copy_blobs(source: Repository, target: Repository, manifest: Mapping[str, Any], scratch: Path) -> None:
    for blob in (manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])):
        if target.has_blob(blob):
            continue
        path = scratch / "blob"
        source.fetch_blob(blob, path)
        target.put_blob(blob, path)
        path.unlink()


def roll_back(repository: Repository, name: str, day: str) -> str:
    """Moves a rolling tag to the published image of a date; returns its digest.

    Raises:
        InputError: that date is not published.
        NightjarError: the registry does not answer or refuses.
    """
    tag = dated_tag(name, day)
    if repository.find_digest(tag) is None:
        dates = sorted({night.date for night in load_index(repository).images if night.name == name})
        listed = ", ".join(dates[-5:]) or "none"
        raise InputError(f"{repository.name}:{tag} is not published; newest dates: {listed}.", "images list REPOSITORY")
    _, body = repository.read_manifest(tag)
    repository.put_manifest(name, body, INDEX_TYPE)
    return repository.digest(name)
