"""The order of Debian's versions.

Source: Debian Policy, 5.6.12; the tests compare with `dpkg --compare-versions`.
"""

from __future__ import annotations

import re
from functools import cmp_to_key
from itertools import zip_longest

_PARTS = re.compile(r"([^0-9]*)([0-9]*)")


def compare_versions(left: str, right: str) -> int:
    """Negative where the first version is older, 0 where they are equal, positive where it is newer.

    >>> compare_versions("1.0~rc1-1", "1.0-1"), compare_versions("1:0.9", "2.0"), compare_versions("1.0-1", "1.0-1")
    (-1, 1, 0)
    """
    (epoch, upstream, revision), (other_epoch, other_upstream, other_revision) = _split(left), _split(right)
    return _compare(epoch, other_epoch) or _compare(upstream, other_upstream) or _compare(revision, other_revision)


debian_key = cmp_to_key(compare_versions)


def _split(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon or not epoch.isdigit():
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, ""
    return epoch, upstream, revision


def _compare(left: str, right: str) -> int:
    for (text, digits), (other_text, other_digits) in zip_longest(
        _PARTS.findall(left), _PARTS.findall(right), fillvalue=("", "")
    ):
        for character, opposite in zip_longest(text, other_text, fillvalue=""):
            if difference := _order(character) - _order(opposite):
                return _sign(difference)
        number, other_number = digits.lstrip("0"), other_digits.lstrip("0")
        if number != other_number:  # compared as text: no length of a number is too much
            return 1 if (len(number), number) > (len(other_number), other_number) else -1
    return 0


def _order(character: str) -> int:
    """A tilde sorts before the end, the end before letters, letters before the rest."""
    if character == "~":
        return -1
    if character == "":
        return 0
    return ord(character) if character.isalpha() else ord(character) + 256


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
