"""Which tags does a nightly image bear, and of which day is it? Pure.

`NAME` rolls: it is the newest night that is whole and tested. `NAME-YYYY-MM-DD` is one night, whole and tested, and
never moves. `NAME-YYYY-MM-DD-OS-ARCHITECTURE` is what one architecture has pushed so far. The date is that of UTC,
everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime

from nightjar_ci.errors import InputError

INDEX_TAG = "nightly-index"
_DATED = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._-]*?)-(?P<date>\d{4}-\d{2}-\d{2})(?:-(?P<platform>[a-z0-9]+(?:-[a-z0-9]+)+))?"
)
_ARCHITECTURE = re.compile(r"-(amd64|arm64)$")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,80}")
_PLATFORM = re.compile(r"[a-z0-9]+(/[a-z0-9]+){1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A dated tag, read: `platform` is None where it is the whole night's."""

    name: str
    date: str
    platform: str | None


def night_date(now: datetime) -> str:
    """The date of a night: that of UTC at one instant, wherever the machine stands.

    >>> from datetime import timedelta, timezone
    >>> instant = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)
    >>> night_date(instant), night_date(instant.astimezone(timezone(timedelta(hours=9))))
    ('2026-11-21', '2026-11-21')

    Raises:
        InputError: the time has no zone, so that nobody knows its date.
    """
    if now.tzinfo is None:
        raise InputError(f"{now.isoformat()}: a time without a zone has no date.", "give it a zone, such as UTC")
    return now.astimezone(UTC).date().isoformat()


def check_date(text: str) -> str:
    """A date as it stands in a tag.

    Raises:
        InputError: it is no `YYYY-MM-DD`.
    """
    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise InputError(f"date: {text!r} is no date, expected YYYY-MM-DD.", "the night's date is that of UTC")


def check_platform(text: str) -> str:
    """A platform as the engine writes it.

    Raises:
        InputError: it is no `OS/ARCHITECTURE`.
    """
    if _PLATFORM.fullmatch(text):
        return text
    raise InputError(f"platform: {text!r} is no platform, expected OS/ARCHITECTURE.", "such as linux/arm64")


def image_name(tag: str) -> str:
    """The name under which an image of the tree is published; its architecture is no part of it.

    >>> image_name("nightjar/jax:cuda12"), image_name("nightjar/jax:cuda12-py312-arm64")
    ('jax-cuda12', 'jax-cuda12-py312')

    Raises:
        InputError: the registry would not take it.
    """
    repository, _, flavor = tag.rpartition("/")[2].partition(":")
    flavor = _ARCHITECTURE.sub("", flavor)
    name = f"{repository}-{flavor}" if flavor not in ("", "latest") else repository
    if not _NAME.fullmatch(name) or read_tag(f"{name}-2026-01-01") != Tag(name=name, date="2026-01-01", platform=None):
        raise InputError(f"{tag!r} gives no name of a nightly image.", "lower-case letters, digits, dots and dashes")
    return name


def dated_tag(name: str, day: str, platform: str | None = None) -> str:
    """The tag of a night, or of what one architecture pushed of it.

    >>> dated_tag("jax-cpu", "2026-11-21"), dated_tag("jax-cpu", "2026-11-21", "linux/arm64")
    ('jax-cpu-2026-11-21', 'jax-cpu-2026-11-21-linux-arm64')
    """
    return f"{name}-{day}" + (f"-{platform.replace('/', '-')}" if platform else "")


def read_tag(tag: str) -> Tag | None:
    """A dated tag, taken apart; None where it bears no date.

    >>> read_tag("jax-cuda12-2026-11-21-linux-arm64")
    Tag(name='jax-cuda12', date='2026-11-21', platform='linux/arm64')
    >>> read_tag("jax-cuda12") is None
    True
    """
    found = _DATED.fullmatch(tag)
    if found is None:
        return None
    platform = found["platform"]
    return Tag(name=found["name"], date=found["date"], platform=platform.replace("-", "/") if platform else None)
