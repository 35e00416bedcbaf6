"""The structure page and its pictures are those of the code."""

import re
from xml.etree import ElementTree

import pytest

import noxfile
from tests.repo.structure import (
    PACKAGES,
    Room,
    find_direct_arrows,
    find_floors,
    read_rooms,
    render_files,
    render_picture,
)


def room(name: str, *imports: str) -> Room:
    return Room(name=name, purpose=f"Purpose of {name}.", imports=frozenset(imports))


@pytest.mark.slow
def test_the_page_and_its_pictures_are_those_of_the_code() -> None:
    stale = [path.name for path, text in render_files().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `nox -s generate_docs` (python -m tests.repo.structure)"


def test_every_top_level_folder_of_the_repository_has_a_row() -> None:
    page = (noxfile.ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([\w.]+)/` \|", page, re.M))
    assert rows == {"ci", "models", "profiling", "docker", "tests", "docs", ".github"}
    assert all((noxfile.ROOT / name).is_dir() for name in rows)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_says_what_belongs_in_it(package: str) -> None:
    for one in read_rooms(PACKAGES[package]):
        assert one.purpose.endswith("."), f"{one.name}: {one.purpose!r} is not a sentence"
        assert not one.purpose.endswith("?")


def test_a_room_stands_above_all_that_it_imports() -> None:
    rooms = [room("errors"), room("formats", "errors"), room("gate", "formats", "errors"), room("web", "errors")]
    assert find_floors(rooms) == [["gate"], ["formats", "web"], ["errors"]]


def test_an_arrow_with_a_detour_is_left_out() -> None:
    rooms = [room("errors"), room("formats", "errors"), room("gate", "formats", "errors")]
    assert find_direct_arrows(rooms) == [("formats", "errors"), ("gate", "formats")]


def test_a_picture_has_a_box_for_every_room_and_escapes_its_text() -> None:
    svg = render_picture("a < b", [room("errors"), room("formats", "errors")])
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"errors", "formats"} == set(texts)
