"""The ladder of nightly images between two dates, from the tags of a registry or from a nightly index.

In: a repository whose tags end in a date (`jax-2026-11-20`), or a `nightjar.images/1` document. Out: a ladder of images
by digest. Consecutive nights with the same image are one rung.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from nightjar_ci.bisect.ladders.rung import SIDE_BY_SIDE, Ladder, OnLine, Rung, list_names, merge_same_builds
from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.nightly_index import NightlyImage, read_index_file
from nightjar_ci.web.registry import Repository

_DATED = re.compile(r"(?:(?P<name>.+?)[-_.])?(?P<date>\d{4}-\d{2}-\d{2})")


def make_image_ladder(source: str, old: str | None, new: str, on_line: OnLine) -> Ladder:
    """The images of the nights from one date to another.

    Args:
        source: `REPOSITORY`, `REPOSITORY:NAME` for tags `NAME-YYYY-MM-DD`, or the file or address of a nightly index.
        old, new: dates or full tags of the ends; without an old one, the ladder starts at the first image.
    """
    first, last = "0000-00-00", _date(new)
    if old is not None:
        first, last = sorted((_date(old), last))
    on_line(f"asking {source} for images from {first} to {last}")
    if source.endswith(".json"):
        nights = list(read_index_file(source).images)
    else:
        nights = _of_registry(source, first, last)
    within = [night for night in nights if first <= night.date <= last]
    _check_one_name(source, {night.name for night in within})
    dates = {night.date for night in within}
    for end in (first, last) if old else (last,):
        if end not in dates:
            raise InputError(f"{source} has no image of {end}.", f"it has {_listed(dates)}")
    rungs = [
        Rung(kind="image", name=night.date, source=night.reference, when=night.date, pins=dict(night.packages))
        for night in sorted(within, key=lambda night: night.date)
    ]
    kept, same = merge_same_builds(rungs)
    if len(kept) < 2:
        raise InputError("the good and the bad end are the same image.", "there is nothing to bisect")
    return Ladder(rungs=kept, notes=same)


def _of_registry(source: str, first: str, last: str) -> list[NightlyImage]:
    name, colon, wanted = source.rpartition(":")
    if not colon or "/" in wanted:
        name, wanted = source, ""
    repository = Repository(name)
    tags = {}
    for tag in repository.tags():
        match = _DATED.fullmatch(tag)
        if match and first <= match["date"] <= last and (not wanted or match["name"] == wanted):
            tags[tag] = match
    _check_one_name(source, {match["name"] or "" for match in tags.values()})
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        digests = list(pool.map(repository.digest, tags))
    return [
        NightlyImage(name=match["name"] or "", date=match["date"], reference=f"{name}@{digest}")
        for match, digest in zip(tags.values(), digests, strict=True)
    ]


def _check_one_name(source: str, names: set[str]) -> None:
    if len(names) > 1:
        several = list_names(sorted(names))
        raise InputError(f"{source} has several images of a date: {several}.", f"name one: {source}:NAME")


def _date(text: str) -> str:
    match = _DATED.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a valid date: expected YYYY-MM-DD.", "images are named by date")
    return match["date"]


def _listed(dates: Iterable[str]) -> str:
    ordered = sorted(dates)
    if ordered:
        return f"those from {ordered[0]} to {ordered[-1]}, {len(ordered)} of them"
    return "none in that time"
