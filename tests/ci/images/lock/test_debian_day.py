"""`images snapshot`: is there an archive that has the OS packages of the pinned day?"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.lock.debian_day import PINS, find_archive, move_day
from nightjar_ci.images.tree import find_checkout
from nightjar_ci.web.http import HttpError
from tests.ci.images.test_command import images
from tests.ci.servers import Answer, serve

CHECKOUT = find_checkout(Path(__file__).parent)
DAY = json.loads((CHECKOUT / PINS).read_text())["variable"]["DEBIAN_DAY"]["default"]
PAGE = f"/archive/debian/{DAY}/dists/trixie/Release"


def archive(method: str, path: str, authorization: str | None) -> Answer:
    """Of one day; and a portal that answers everything with a page."""
    if path.startswith("/portal"):
        return 200, {}, b"<html>Log in</html>"
    return (200, {}, b"Origin: Debian\nCodename: trixie\n") if path == PAGE else (404, {}, b"")


def test_an_archive_that_has_the_pinned_day_is_printed_and_one_that_lacks_it_is_said(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with serve(archive) as served:
        found = images("snapshot", f"{served.url}/archive/", environ=environ)
        other = images("snapshot", f"{served.url}/archive", environ={**environ, "DEBIAN_DAY": "20200101T000000Z"})
    assert (found.returncode, found.stdout) == (0, f"{served.url}/archive\n")
    assert (other.returncode, other.stdout) == (1, "")
    assert "images get the current OS packages" in other.stderr
    assert "20200101T000000Z/dists/trixie/Release answered 404" in other.stderr


def test_what_does_not_answer_or_is_no_archive_is_never_used() -> None:
    with serve(archive) as served, pytest.raises(InputError, match="is not a Debian Release file"):
        find_archive(CHECKOUT, f"{served.url}/portal")
    with pytest.raises(HttpError, match="cannot reach"):
        find_archive(CHECKOUT, served.url)


def test_the_day_moves_and_nothing_else_of_the_file() -> None:
    text = (CHECKOUT / PINS).read_text()
    assert move_day(text, datetime(2026, 11, 22, 9, tzinfo=UTC)) == text.replace(DAY, "20261122T000000Z")
