"""Where does the nightly index live, and how is it kept whole? In the registry, under one tag, remade from the
nights.

In: a repository. Out: its nightly index. Each night's entry is an artifact beside the night's image, which never
changes; the document under the tag `nightly-index` gathers them. Whoever writes it adds every night that it lacks, so
that a write that was lost to another one is made good by the next.
"""

from __future__ import annotations

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.images.publish.artifacts import NIGHT_TYPE, find_documents
from nightjar_ci.images.publish.manifests import EMPTY, render_artifact
from nightjar_ci.images.publish.nightly_index import (
    IMAGES_SCHEMA,
    Night,
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
    """The nightly index of a repository, as it was last written; without nights where it never was.

    Raises:
        NightjarError: the registry does not answer, or holds something else under the tag.
    """
    try:
        manifest, _ = repository.read_manifest(INDEX_TAG)
        digest = manifest["layers"][0]["digest"]
    except AbsentError:
        return make_index(())
    except (KeyError, IndexError, TypeError):
        raise NightjarError(f"{repository.name}:{INDEX_TAG} is no nightly index.") from None
    return parse_index(repository.read_blob(digest), f"{repository.name}:{INDEX_TAG}")


def open_index(source: str) -> NightlyIndex:
    """The nightly index of a repository, or in a file or at an address that ends with `.json`.

    Raises:
        InputError: there is none.
        NightjarError: the registry or the address does not answer.
    """
    return read_index_file(source) if source.endswith(".json") else load_index(Repository(source))


def refresh_index(repository: Repository, *, anew: bool = False) -> NightlyIndex:
    """Brings the nightly index up to date with the nights that are published.

    Args:
        repository: where it lives.
        anew: read every night's entry again, not only those that are missing.

    Raises:
        NightjarError: the registry does not answer or refuses, or a night has no entry.
    """
    before = load_index(repository)
    known = {} if anew else {(night.name, night.date): night for night in before.images}
    try:
        published = [tag for tag in map(read_tag, repository.tags()) if tag is not None and tag.platform is None]
    except AbsentError:
        published = []
    nights = []
    for tag in published:
        night = known.get((tag.name, tag.date)) or _read_night(repository, dated_tag(tag.name, tag.date))
        if night is not None:
            nights.append(night)
    after = make_index(nights)
    if after != before:
        _store(repository, after)
    return after


def find_night(index: NightlyIndex, reference: str) -> Night:
    """The night that `NAME` (the newest of it) or `NAME-DATE` stands for.

    Raises:
        InputError: there is none.
    """
    tag = read_tag(reference)
    name, day = (tag.name, tag.date) if tag is not None else (reference, None)
    found = [night for night in index.images if night.name == name and day in (None, night.date)]
    if found:
        return max(found, key=lambda night: night.date)
    names = ", ".join(sorted({night.name for night in index.images})) or "none"
    raise InputError(f"{reference!r} is no published night, the names are: {names}.", "NAME or NAME-YYYY-MM-DD")


def _read_night(repository: Repository, tag: str) -> Night | None:
    digest = repository.find_digest(tag)
    documents = find_documents(repository, digest, NIGHT_TYPE, {"nightjar.tag": tag}) if digest else []
    return Night.model_validate_json(documents[-1]) if documents else None  # its publisher is not done yet


def _store(repository: Repository, index: NightlyIndex) -> None:
    document = render_index(index).encode()
    for blob in (EMPTY, document):
        repository.put_blob(digest_of(blob), blob)
    manifest = render_artifact(INDEX_MEDIA_TYPE, document, annotations={"nightjar.schema": IMAGES_SCHEMA})
    repository.put_manifest(INDEX_TAG, manifest, MANIFEST_TYPE)
