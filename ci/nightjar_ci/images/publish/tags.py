"""The tags of a nightly image, and its date. Pure.

`NAME` is the rolling tag: the newest complete and tested image. `NAME-YYYY-MM-DD` is complete and tested, too, and
never moves. `NAME-YYYY-MM-DD-OS-ARCHITECTURE` is the image that one platform pushed. All dates are in UTC.
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
    """A parsed dated tag; `platform` is None if it is the tag of all platforms."""

    name: str
    date: str
    platform: str | None


def night_date(now: datetime) -> str:
    """The date of a nightly image: the UTC date of an instant.

    >>> from datetime import timedelta, timezone
    >>> instant = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)
    >>> night_date(instant), night_date(instant.astimezone(timezone(timedelta(hours=9))))
    ('2026-11-21', '2026-11-21')
    """
    if now.tzinfo is None:
        raise InputError(f"{now.isoformat()} has no time zone.", "add one, such as UTC")
    return now.astimezone(UTC).date().isoformat()


def check_date(text: str) -> str:
    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise InputError(f"{text!r} is not a valid date; expected YYYY-MM-DD.", "use the UTC date of the nightly image")


def check_not_future(day: str, registry_day: str | None) -> None:
    """Checks that a date is not after the registry's: a rolling tag never moves back from such a date.

    Args:
        registry_day: the registry's own date; None if it sends none.
    """
    if registry_day is not None and day > registry_day:
        raise InputError(
            f"{day} is after {registry_day}, the registry's date in UTC.", "correct this machine's clock, or --date"
        )


def check_platform(text: str) -> str:
    if _PLATFORM.fullmatch(text):
        return text
    raise InputError(f"{text!r} is not a valid platform; expected OS/ARCHITECTURE.", "write it like linux/arm64")


def image_name(tag: str) -> str:
    """The name of a published image, from its tag in the tree; it does not contain the architecture.

    >>> image_name("nightjar/jax:cuda12"), image_name("nightjar/jax:cuda12-py312-arm64")
    ('jax-cuda12', 'jax-cuda12-py312')
    """
    repository, _, flavor = tag.rpartition("/")[2].partition(":")
    flavor = _ARCHITECTURE.sub("", flavor)
    name = f"{repository}-{flavor}" if flavor not in ("", "latest") else repository
    if not _NAME.fullmatch(name) or read_tag(f"{name}-2026-01-01") != Tag(name=name, date="2026-01-01", platform=None):
        raise InputError(
            f"{tag!r} gives no valid name of a nightly image.", "use lower-case letters, digits, dots and dashes"
        )
    return name


def dated_tag(name: str, day: str, platform: str | None = None) -> str:
    """The tag of a nightly image, or of its image for one platform.

    >>> dated_tag("jax-cpu", "2026-11-21"), dated_tag("jax-cpu", "2026-11-21", "linux/arm64")
    ('jax-cpu-2026-11-21', 'jax-cpu-2026-11-21-linux-arm64')
    """
    if not platform:
        return f"{name}-{day}"
    return f"{name}-{day}-{platform.replace('/', '-')}"


def read_tag(tag: str) -> Tag | None:
    """A parsed dated tag; None if the tag has no date.

    >>> read_tag("jax-cuda12-2026-11-21-linux-arm64")
    Tag(name='jax-cuda12', date='2026-11-21', platform='linux/arm64')
    >>> read_tag("jax-cuda12") is None
    True
    """
    match = _DATED.fullmatch(tag)
    if match is None:
        return None
    platform = match["platform"]
    return Tag(name=match["name"], date=match["date"], platform=platform.replace("-", "/") if platform else None)
