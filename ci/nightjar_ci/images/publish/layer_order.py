"""A fixed order for the files of a layer, so that one lock gives one digest.

In: the tar of a layer. Out: the same entries, byte for byte, folder by folder. Docker's overlay2 driver writes a layer
in one of two orders, at random: it walks the folders, or it sorts all paths as strings, so that `a.h` comes between `a`
and `a/b`.

Source: moby, daemon/graphdriver/overlay2 (Diff) and pkg/archive/changes.go (ExportChanges).
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import IO

_READ_BYTES = 2**20


def is_ordered(members: Sequence[tuple[str, bool]]) -> bool:
    """Whether the entries of a layer need no sorting.

    Args:
        members: name of each, and whether it is a hard link. A hard link must follow its target, so that a layer with
            one is never sorted.

    >>> is_ordered([("a", False), ("a/b", False), ("a.h", False)])
    True
    >>> is_ordered([("a", False), ("a.h", False), ("a/b", False)])
    False
    """
    keys = [_sort_key(name) for name, _ in members]
    return any(linked for _, linked in members) or all(key <= following for key, following in pairwise(keys))


def write_ordered(layer: IO[bytes], feed: Callable[[bytes], object]) -> None:
    """Writes the entries of a layer in the fixed order, then the bytes after the last one."""
    layer.seek(0)
    with tarfile.open(fileobj=layer, mode="r:") as tar:
        members = tar.getmembers()
        end = tar.offset
    starts = [member.offset for member in members]
    spans = dict(zip(starts, [*starts[1:], end], strict=True))
    for member in sorted(members, key=lambda member: _sort_key(member.name)):
        _copy(layer, member.offset, spans[member.offset] - member.offset, feed)
    _copy(layer, end, sys.maxsize, feed)


def _sort_key(name: str) -> list[str]:
    return name.rstrip("/").split("/")


def _copy(layer: IO[bytes], start: int, size_bytes: int, feed: Callable[[bytes], object]) -> None:
    layer.seek(start)
    while data := layer.read(min(size_bytes, _READ_BYTES)):
        feed(data)
        size_bytes -= len(data)
