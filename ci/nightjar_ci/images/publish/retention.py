"""Which nights may go? Those that are older than so many days, unless something still needs them.

In: tags with their digests, today, how many days are kept. Out: the nights and leftovers to delete. A registry deletes
by digest, and with it every tag of that digest: so an image that a kept tag or a rolling one names stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from nightjar_ci.images.publish.manifests import read_platforms
from nightjar_ci.images.publish.tags import dated_tag, read_tag
from nightjar_ci.web.registry import AbsentError, Repository

BESIDE = ("", ".sig", ".att")  # the list of documents, and cosign's signatures and attestations


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What goes: tags, and the digests behind them; and tags that are old enough but share an image with a kept one."""

    tags: tuple[str, ...]
    digests: tuple[str, ...]
    shared: tuple[str, ...]


def find_expired(digests: Mapping[str, str], today: date, keep_days: int) -> Expired:
    """The tags that retention lets go.

    The newest night of each name stays, however old it is; and the first night of each month.

    Args:
        digests: every tag of a repository to the digest behind it.
        today: the date of UTC.
        keep_days: a night that is so many days old, or younger, stays.
    """
    limit = (today - timedelta(days=keep_days)).isoformat()
    nights = {tag: read for tag in digests if (read := read_tag(tag)) is not None}
    whole: dict[str, list[str]] = {}
    for read in nights.values():
        if read.platform is None:
            whole.setdefault(read.name, []).append(read.date)
    spared = {(name, max(dates)) for name, dates in whole.items()}
    for name, dates in whole.items():
        firsts: dict[str, str] = {}
        for day in sorted(dates):
            firsts.setdefault(day[:7], day)
        spared |= {(name, day) for day in firsts.values()}
    old = {tag for tag, read in nights.items() if read.date < limit and (read.name, read.date) not in spared}
    needed = {digest for tag, digest in digests.items() if tag not in old}
    gone = sorted(tag for tag in old if digests[tag] not in needed)
    return Expired(
        tags=tuple(gone),
        digests=tuple(sorted({digests[tag] for tag in gone})),
        shared=tuple(sorted(tag for tag in old if digests[tag] in needed)),
    )


def list_digests(repository: Repository) -> dict[str, str]:
    """Every tag of a repository to the digest behind it, and each image of a published index by its platform.

    Raises:
        NightjarError: the registry does not answer.
    """
    found: dict[str, str] = {}
    for tag in repository.tags():
        digest = repository.find_digest(tag)
        if digest is None:
            continue  # deleted in between
        found[tag] = digest
        read = read_tag(tag)
        if read is not None and read.platform is None:
            index, _ = repository.read_manifest(digest)
            for platform, image in read_platforms(index).items():
                found.setdefault(dated_tag(read.name, read.date, platform), image)
    return found


def delete_expired(repository: Repository, expired: Expired) -> None:
    """Deletes images, and what was beside them; an image that is gone already is no error.

    Raises:
        RegistryError: the registry lets nobody delete.
    """
    for digest in expired.digests:
        beside = digest.replace(":", "-")
        for one in (digest, *(repository.find_digest(f"{beside}{suffix}") for suffix in BESIDE)):
            try:
                if one is not None:
                    repository.delete_manifest(one)
            except AbsentError:
                continue
