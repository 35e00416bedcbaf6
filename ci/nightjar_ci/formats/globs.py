"""Globs of names. A bracket in a pattern may be literal: pytest and others write `test[1024-float32]`."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """Whether a name equals the pattern or matches it as a glob; brackets are a character set or literal.

    >>> matches("test[1024-float32]", "test[1024-*]"), matches("loss_b", "loss_[abc]"), matches("test1", "test[2]")
    (True, True, False)
    """
    return name == pattern or fnmatchcase(name, pattern) or fnmatchcase(name, pattern.replace("[", "[[]"))
