"""The snapshot day of the Debian packages, and the archive that serves it.

In: `docker/versions.json` and an archive such as snapshot.debian.org. Out: the pin `DEBIAN_DAY`, moved by `images
bump`; the URL of the archive if it has that day, for `DEBIAN_SNAPSHOT` of a nightly build. Without an archive, a
nightly image gets the mirror's current packages and cannot be rebuilt after the mirror updates.

Source: snapshot.debian.org: ADDRESS/debian/TIMESTAMP/ is the archive at that time.
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


def move_day(pins: str, now: datetime) -> str:
    document = json.loads(pins)
    document["variable"]["DEBIAN_DAY"]["default"] = f"{now:%Y%m%d}T000000Z"
    return json.dumps(document, indent=2) + "\n"


def find_archive(checkout: Path, address: str, day: str = "") -> str:
    """The URL of an archive, after a check that it has the packages of a day.

    Args:
        checkout: root of the checkout, whose pins give suite and day.
        address: URL of the archive, such as `http://snapshot.debian.org/archive`.
        day: such as `20261120T000000Z`; empty: the pinned day.
    """
    pins = json.loads((checkout / PINS).read_text(encoding="utf-8"))["variable"]
    day, suite = day or pins["DEBIAN_DAY"]["default"], pins["DEBIAN_SUITE"]["default"]
    page = f"{address.rstrip('/')}/debian/{day}/dists/{suite}/Release"
    text, _ = get(page, accept="text/plain")
    if not re.search(rb"^(Codename|Suite): ", text, re.MULTILINE):
        raise InputError(f"{hide_passwords(page)} is not a Debian Release file.", f"use an archive such as {ARCHIVE}")
    return address.rstrip("/")
