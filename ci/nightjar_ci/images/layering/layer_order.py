"""In which order do the files of a layer stand? One, whichever way the engine took to write it.

In: the tar of a layer. Out: the same entries, byte for byte, folder by folder. Docker's overlay2 driver has two ways to
write a layer, and which one it takes is chance: it walks the folders, or it sorts all paths as texts, so that `a.h`
stands between `a` and `a/b`. Of one lock came two digests.

Source: moby, daemon/graphdriver/overlay2 (Diff) and pkg/archive/changes.go (ExportChanges).
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import IO

_READ_BYTES = 2**20


def stands_in_order(members: Sequence[tuple[str, bool]]) -> bool:
    """Whether the entries of a layer need no sorting.

    Args:
        members: name of each, and whether it is a hard link, which must stay behind what it links to: a layer with one
            is left as it is.

    >>> stands_in_order([("a", False), ("a/b", False), ("a.h", False)])
    True
    >>> stands_in_order([("a", False), ("a.h", False), ("a/b", False)])
    False
    """
    names = [_place(name) for name, _ in members]
    return any(linked for _, linked in members) or all(one <= other for one, other in pairwise(names))


def write_in_order(layer: IO[bytes], feed: Callable[[bytes], object]) -> None:
    """Hands on the entries of a layer in their order, and what follows the last.

    Args:
        layer: its tar, in a file that can be read from any place.
        feed: takes the bytes.
    """
    layer.seek(0)
    with tarfile.open(fileobj=layer, mode="r:") as tar:
        members = tar.getmembers()
        end = tar.offset
    starts = [member.offset for member in members]
    spans = dict(zip(starts, [*starts[1:], end], strict=True))
    for member in sorted(members, key=lambda member: _place(member.name)):
        _copy(layer, member.offset, spans[member.offset], feed)
    _copy(layer, end, None, feed)


def _place(name: str) -> list[str]:
    return name.rstrip("/").split("/")


def _copy(layer: IO[bytes], start: int, end: int | None, feed: Callable[[bytes], object]) -> None:
    layer.seek(start)
    left = end - start if end is not None else None
    while data := layer.read(_READ_BYTES if left is None else min(left, _READ_BYTES)):
        feed(data)
        left = None if left is None else left - len(data)
