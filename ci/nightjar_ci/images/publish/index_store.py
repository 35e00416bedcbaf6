"""The nightly index in a registry, under the tag `nightly-index`.

In: a repository. Out: its nightly index. Each entry is an artifact attached to a nightly image and never changes; the
index collects them. Every write adds all missing entries, so it also restores entries lost in a concurrent write.
"""

from __future__ import annotations

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import NIGHT_TYPE, find_documents
from nightjar_ci.images.publish.manifests import EMPTY, render_artifact
from nightjar_ci.images.publish.nightly_index import (
    IMAGES_SCHEMA,
    NightlyImage,
    NightlyIndex,
    make_index,
    parse_index,
    read_index_file,
    render_index,
)
from nightjar_ci.images.publish.tags import INDEX_TAG, dated_tag, read_tag
from nightjar_ci.web.registry import MANIFEST_TYPE, AbsentError, Repository, digest_of

INDEX_MEDIA_TYPE = "application/vnd.nightjar.images.v1+json"


def load_index(repository: Repository) -> NightlyIndex:
    """The nightly index of a repository; empty if the repository has none."""
    try:
        manifest, _ = repository.read_manifest(INDEX_TAG)
        digest = manifest["layers"][0]["digest"]
    except AbsentError:
        return make_index(())
    except (KeyError, IndexError, TypeError):
        raise NightjarError(f"{repository.name}:{INDEX_TAG} is not a nightly index.") from None
    return parse_index(repository.read_blob(digest), f"{repository.name}:{INDEX_TAG}")


def open_index(source: str) -> NightlyIndex:
    if source.endswith(".json"):
        return read_index_file(source)
    return load_index(Repository(source))


def refresh_index(repository: Repository) -> NightlyIndex:
    """Updates the nightly index with the published nightly images."""
    before = load_index(repository)
    listed = {(night.name, night.date): night for night in before.images}
    try:
        published = [tag for tag in map(read_tag, repository.tags()) if tag is not None and tag.platform is None]
    except AbsentError:
        published = []
    nights = []
    for tag in published:
        night = listed.get((tag.name, tag.date)) or _read_night(repository, dated_tag(tag.name, tag.date))
        if night is not None:
            nights.append(night)
    after = make_index(nights)
    if after != before:
        _store(repository, after)
    return after


def find_image(index: NightlyIndex, reference: str) -> NightlyImage:
    """The nightly image that `NAME` (the newest one) or `NAME-DATE` refers to."""
    tag = read_tag(reference)
    name, day = reference, None
    if tag is not None:
        name, day = tag.name, tag.date
    matches = [night for night in index.images if night.name == name and day in (None, night.date)]
    if matches:
        return max(matches, key=lambda night: night.date)
    names = ", ".join(sorted({night.name for night in index.images})) or "none"
    raise InputError(f"{reference!r} is not a published nightly image; names: {names}.", "use NAME or NAME-YYYY-MM-DD")


def _read_night(repository: Repository, tag: str) -> NightlyImage | None:
    digest = repository.find_digest(tag)
    if digest is None:
        return None
    documents = find_documents(repository, digest, NIGHT_TYPE, {"nightjar.tag": tag})
    return NightlyImage.model_validate_json(documents[-1]) if documents else None  # None: being published right now


def _store(repository: Repository, index: NightlyIndex) -> None:
    document = render_index(index).encode()
    for blob in (EMPTY, document):
        repository.put_blob(digest_of(blob), blob)
    manifest = render_artifact(INDEX_MEDIA_TYPE, document, annotations={"nightjar.schema": IMAGES_SCHEMA})
    repository.put_manifest(INDEX_TAG, manifest, MANIFEST_TYPE)
