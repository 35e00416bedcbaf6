"""Of which day are the packages of the OS, and is there an archive of Debian's past that still has that day?

In: `docker/versions.json` and an archive such as snapshot.debian.org. Out: the pin `DEBIAN_DAY`, moved by `images
bump`; the address of the archive where it has the day, for `DEBIAN_SNAPSHOT` of a night, or why it is of no use.
Without an archive a night has the packages that the mirror had, and nothing can build it again once that moved on.

Source: snapshot.debian.org: ADDRESS/debian/TIMESTAMP/ is the archive as it stood then.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from nightjar_ci.errors import InputError
from nightjar_ci.web.http import get, hide_passwords

PINS = "docker/versions.json"
ARCHIVE = "http://snapshot.debian.org/archive"
_DAY = re.compile(r'("DEBIAN_DAY":\s*\{\s*"default":\s*)"[^"]*"')


def move_day(pins: str, now: datetime) -> str:
    """The text of versions.json with the day of `now`, of UTC, from its beginning; SOURCE_DATE_EPOCH stays as it is.

    >>> from datetime import UTC
    >>> move_day('{"DEBIAN_DAY": {"default": "20261120T000000Z"}}', datetime(2026, 11, 22, 9, tzinfo=UTC))
    '{"DEBIAN_DAY": {"default": "20261122T000000Z"}}'
    """
    return _DAY.sub(rf'\g<1>"{now:%Y%m%d}T000000Z"', pins)


def find_archive(checkout: Path, address: str, day: str = "") -> str:
    """The address of an archive that has the packages of a day.

    Args:
        checkout: root of the checkout, whose pins name suite and day.
        address: of the archive, such as `http://snapshot.debian.org/archive`.
        day: such as `20261120T000000Z`; that of the pins where empty.

    Raises:
        HttpError: it does not answer, or lacks the day.
        InputError: it answers with something else than a Debian archive.
    """
    pins = json.loads((checkout / PINS).read_text(encoding="utf-8"))["variable"]
    day, suite = day or pins["DEBIAN_DAY"]["default"], pins["DEBIAN_SUITE"]["default"]
    page = f"{address.rstrip('/')}/debian/{day}/dists/{suite}/Release"
    text, _ = get(page, accept="text/plain")
    if not re.search(rb"^(Codename|Suite): ", text, re.MULTILINE):
        raise InputError(f"{hide_passwords(page)} is no Release file of Debian.", f"an archive such as {ARCHIVE}")
    return address.rstrip("/")
