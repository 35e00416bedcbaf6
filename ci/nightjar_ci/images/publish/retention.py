"""Retention of nightly images: expired ones are deleted unless a kept tag shares their digest.

In: tags with their digests, today, and the days to keep. Out: the images and leftovers to delete. A registry deletes by
digest, with every tag of that digest, so that an image stays if a kept tag or a rolling tag refers to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from nightjar_ci.errors import NightjarError
from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.tags import dated_tag, read_tag
from nightjar_ci.web.registry import AbsentError, Repository

ATTACHED = ("", ".sig", ".att")  # tag suffixes: the list of artifacts, and cosign's signatures and attestations


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Tags to delete with their digests, and old tags that stay because they share an image with a kept one."""

    tags: tuple[str, ...]
    digests: tuple[str, ...]
    shared: tuple[str, ...]


def find_expired(digests: Mapping[str, str], today: date, keep_days: int) -> Expired:
    """The tags to delete.

    The newest image of each name stays, however old it is, and so does the first one of each month.

    Args:
        keep_days: images of this age in days, or younger, stay.
    """
    limit = (today - timedelta(days=keep_days)).isoformat()
    dated = {name: tag for name in digests if (tag := read_tag(name)) is not None}
    published: dict[str, list[str]] = {}
    for tag in dated.values():
        if tag.platform is None:
            published.setdefault(tag.name, []).append(tag.date)
    kept = {(name, max(dates)) for name, dates in published.items()}
    for name, dates in published.items():
        firsts: dict[str, str] = {}
        for day in sorted(dates):
            firsts.setdefault(day[:7], day)
        kept |= {(name, day) for day in firsts.values()}
    old = {name for name, tag in dated.items() if tag.date < limit and (tag.name, tag.date) not in kept}
    needed = {digest for name, digest in digests.items() if name not in old}
    gone = [(bool(dated[name].platform), name) for name in old if digests[name] not in needed]
    expired = [name for _, name in sorted(gone)]  # indexes first: some registries keep an image that one refers to
    return Expired(
        tags=tuple(expired),
        digests=tuple(dict.fromkeys(digests[name] for name in expired)),
        shared=tuple(sorted(name for name in old if digests[name] in needed)),
    )


def list_digests(repository: Repository) -> dict[str, str]:
    """Every tag of a repository to its digest, and each image of a published index under its platform's tag."""
    digests: dict[str, str] = {}
    for name in repository.tags():
        digest = repository.find_digest(name)
        if digest is None:
            continue  # deleted meanwhile
        digests[name] = digest
        tag = read_tag(name)
        if tag is not None and tag.platform is None:
            index, _ = repository.read_manifest(digest)
            for platform, image in read_platforms(index).items():
                digests.setdefault(dated_tag(tag.name, tag.date, platform), image)
    return digests


def delete_expired(repository: Repository, expired: Expired) -> None:
    """Deletes images and their attached documents; an image that is already deleted is ignored."""
    for tag in expired.tags:
        with contextlib.suppress(NightjarError):  # of registries that delete by digest only, or a digest without tags
            repository.delete_manifest(tag)
    for image in expired.digests:
        prefix = image.replace(":", "-")
        for digest in (image, *(repository.find_digest(f"{prefix}{suffix}") for suffix in ATTACHED)):
            if digest is not None:
                with contextlib.suppress(AbsentError):
                    repository.delete_manifest(digest)
